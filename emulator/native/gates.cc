// The gradient of a gate, in one pass over the inputs. A gate computes y = x * factor, with a factor for each sample and
// channel.

#include "emulator/native/blocks.h"
#include "emulator/native/storage.h"

namespace native {
namespace {

// Computes dx = dy * factor, and the sum of dy * x for each channel.
void gradients(const float* __restrict x, const float* __restrict factor, const float* __restrict dy, int64_t pixels,
               int64_t channels, float* __restrict dx, float* __restrict sums) {
  std::fill(sums, sums + channels, 0.0f);
  for (int64_t p = 0; p < pixels; ++p, x += channels, dy += channels, dx += channels) {
    for (int64_t c = 0; c < channels; ++c) {
      dx[c] = dy[c] * factor[c];
      sums[c] += dy[c] * x[c];
    }
  }
}

struct Rules : NoAttributes {
  void check(Shapes* shapes) const {
    shapes->input(0, "nhwc");
    shapes->input(1, "n11c");
    shapes->input(2, "nhwc");
    shapes->output(0, "nhwc");
    shapes->output(1, "n11c");
  }
};

class GateGradient : public CheckedKernel<Rules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Walk walk(context->input(0));
    const Reader x(context->input(0)), dy(context->input(2));
    const float* factor = numbers(context, 1);
    float *dx, *dfactor;
    OP_REQUIRES_OK(context, allocate(context, {{context->input(0).shape(), &dx}, {context->input(1).shape(), &dfactor}}));
    BlockSums sums(walk);
    const std::vector<Phase> phases = {
        {[&](int64_t sample, int64_t block, int64_t first, int64_t pixels) {
           const int64_t start = sample * walk.sample_size() + first;
           Scratches& scratches = Scratches::own();
           const int64_t count = pixels * walk.channels;
           gradients(x.read(start, count, &scratches.x), factor + sample * walk.channels, dy.read(start, count, &scratches.dy),
                     pixels, walk.channels, dx + start, sums.of(sample, block));
         },
         [&](int64_t sample) {
           const std::vector<double> total = sums.total(sample);
           for (int64_t c = 0; c < walk.channels; ++c) dfactor[sample * walk.channels + c] = static_cast<float>(total[c]);
         }}};
    run(context, walk, phases, 1);
  }
};

REGISTER_OP("EmulatorGateGradient")
    .Input("x: T").Input("factor: float").Input("dy: U")
    .Attr(kStorage).Attr(kArrivingStorage)
    .Output("dx: float").Output("dfactor: float")
    .SetShapeFn(set_shapes<Rules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorGateGradient").Device(tensorflow::DEVICE_CPU), GateGradient);

}  // namespace
}  // namespace native
