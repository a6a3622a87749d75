// Convolutions of inference, together with the operations before and after them, in one pass over memory:
//
// * pointwise: x [batch, height, width, channels] by weights [1, 1, channels, filters]; a gate or a mean may come before it.
// * depthwise: x by weights [kernel, kernel, 1, channels], with SAME padding.
//
// Batch norm or a bias, and an activation, follow the convolution. Every result sums its products in the order of the
// weights, and is then normalised as in norm.cc. Neither the number of threads nor other pixels and samples change any
// bit.

#include <memory>
#include <string>

#include "emulator/native/norms.h"
#include "emulator/native/products.h"

namespace native {
namespace {

constexpr int64_t kCached = 24 << 10;    // This many bytes of pixels stay in the first cache for all panels of weights.
constexpr int64_t kOfCaches = 16 << 20;  // Results of more bytes leave the caches before the next layer reads them.
constexpr int64_t kNear = 1 << 20;       // A previous layer leaves this many numbers in the second cache.
constexpr int64_t kBandRows = 16;        // A work item has this many rows of an image.
constexpr int64_t kUnits = 16;           // A depthwise convolution needs this many work items for the threads.
constexpr int kTilePixels = 7;           // A depthwise tile has 7 pixels, which divides the sides of most layers at 224 px.
constexpr int kTileVectors = kRegisters / 16;  // A depthwise tile has this many vectors; its sums fit into the registers.
constexpr int64_t kTileChannels = kTileVectors * kLanes;
constexpr float kOutside[kTileChannels] = {};  // A pixel outside the image has these values.

// The results of a convolution: their memory, and the factor and shift of each filter.
struct Results {
  Results at(int64_t pixel, int64_t filter) const {
    return {factor + filter, shift + filter, y + pixel * filters + filter, filters, past_cache};
  }

  // Every thread must call this after its last result. Other threads may not see results written past the caches before.
  void end() const {
    if (past_cache) end_stores_past_caches();
  }

  const float *factor, *shift;
  float* y;
  int64_t filters;
  bool past_cache;  // y is written past the caches if it is larger than they are
};

// Writes the first `count` pixels of a tile: y = activation(sums * factor + shift). `columns` is the number of the tile's
// columns.
template <Activation kind, int pixels, int vectors>
inline void finish(const Lanes (&sums)[pixels][vectors], const Results& to, int64_t columns, int64_t count = pixels) {
  alignas(kVectorBytes) float tile[pixels * vectors * kLanes];
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) {
    const First own(columns - v * kLanes);
    const Lanes factor = own.load(to.factor + v * kLanes), shift = own.load(to.shift + v * kLanes);
#pragma GCC unroll 24
    for (int p = 0; p < pixels; ++p) store(sums[p][v] * factor + shift, tile + (p * vectors + v) * kLanes);
  }
  for (int k = 0; k < pixels * vectors * kLanes; ++k) tile[k] = activated<kind>(tile[k]);
  const float* from = tile;
  float* y = to.y;
  for (int p = 0; p < std::min<int64_t>(pixels, count); ++p, y += to.filters) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v, from += kLanes) {
      if (to.past_cache) {
        store_past_caches(load(from), y + v * kLanes);
      } else {
        // Prefetch the lines of the next results, because stores that wait would delay later loads.
        __builtin_prefetch(y + (pixels * to.filters + v * kLanes), 1);
        First(columns - v * kLanes).store(load(from), y + v * kLanes);
      }
    }
  }
}

// Calls `work` with the activation as a type, so that the work is compiled for it.
template <typename Work>
void with_activation(const std::string& name, Work work) {
  if (name == "relu") return work(std::integral_constant<Activation, Activation::kRelu>());
  if (name == "relu6") return work(std::integral_constant<Activation, Activation::kRelu6>());
  if (name == "swish") return work(std::integral_constant<Activation, Activation::kSwish>());
  if (name == "sigmoid") return work(std::integral_constant<Activation, Activation::kSigmoid>());
  return work(std::integral_constant<Activation, Activation::kLinear>());  // kActivationsOrGate allows no others
}

// The pixels of all samples, multiplied by the gate of their sample if there is one.
struct Pixels {
  // Returns `wanted` pixels, beginning with `first`. Pixels multiplied by a gate are stored in `scratch`.
  const float* of(int64_t first, int64_t wanted, std::vector<float>* scratch) const {
    const float* pixel = x + first * channels;
    if (!gate) {
      if (count * channels > kNear) touch(pixel, wanted * channels);
      return pixel;
    }
    scratch->resize(wanted * channels);
    float* to = scratch->data();
    for (int64_t k = first; k < first + wanted; ++k, pixel += channels, to += channels) {
      const float* factors = gate + k / of_sample * channels;
      for (int64_t c = 0; c < channels; ++c) to[c] = pixel[c] * factors[c];
    }
    return scratch->data();
  }

  const float *x, *gate;
  int64_t count, of_sample, channels;
};

// Computes a pointwise convolution as a matrix product.
template <Activation kind>
void multiply(OpKernelContext* context, const Pixels& x, const float* w, const Results& to) {
  const int64_t depth = x.channels, filters = to.filters, panels = (filters + kPanel - 1) / kPanel;
  auto do_panel = [&](const float* from, int64_t first, int64_t count, int64_t panel, const float* b, int64_t b_row) {
    const int64_t start = panel * kPanel, own = std::min(filters - start, kPanel);
    multiply_columns(from, count, b, b_row, depth, own, [&](int64_t r, auto& sums) {
      finish<kind>(sums, to.at(first + r, start), own);
    });
  };
  const int64_t picoseconds = 10 * depth + 500;  // rough time of one result
  if (filters > x.count) {  // weights are most of the memory that is read
    std::vector<float> scratch;
    const float* from = x.of(0, x.count, &scratch);
    if (x.count == 1) {
      const int64_t strips = (filters + kStrip - 1) / kStrip;
      in_shares(context, strips, kStrip * picoseconds / 1000, [&](int64_t begin, int64_t end) {
        const int64_t last = std::min(end * kStrip, filters);
        multiply_row(from, w, filters, depth, begin * kStrip, last, [&](int64_t column, auto& sums) {
          finish<kind>(sums, to.at(0, column), last - column);
        });
        to.end();
      });
      return;
    }
    in_shares(context, panels, x.count * kPanel * picoseconds / 1000, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) do_panel(from, 0, x.count, panel, w + panel * kPanel, filters);
      to.end();
    });
    return;
  }
  // Rows of a panel become neighbours, because rows that are far apart would be in too many pages of memory.
  std::vector<float> packed(panels * depth * kPanel);
  in_threads(context, panels, depth * kPanel / 8 + 1, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t start = panel * kPanel, own = std::min(filters - start, kPanel);
      for (int64_t k = 0; k < depth; ++k) std::copy_n(w + k * filters + start, own, &packed[(panel * depth + k) * kPanel]);
    }
  });
  const int64_t chunk = std::max<int64_t>(kCached / (4 * depth) / kTileRows, 1) * kTileRows;
  const int64_t tiles = (x.count + kTileRows - 1) / kTileRows;
  in_shares(context, tiles, kTileRows * filters * picoseconds / 1000, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch;
    const int64_t last = std::min(end * kTileRows, x.count);
    for (int64_t first = begin * kTileRows; first < last; first += chunk) {
      const int64_t count = std::min(chunk, last - first);
      const float* from = x.of(first, count, &scratch);
      for (int64_t panel = 0; panel < panels; ++panel) do_panel(from, first, count, panel, &packed[panel * depth * kPanel], kPanel);
    }
    to.end();
  });
}

// The rules that the convolutions with batch norm have in common.
struct NormRules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(context->GetAttr("activation", &activation));
    TF_RETURN_IF_ERROR(context->GetAttr("epsilon", &epsilon));
    return read_size(context, "stride", &stride);
  }

  void check(Shapes* shapes, const char* weights) const {
    shapes->input(0, "nhwc");
    shapes->input(1, weights);
    for (int k = 2; k < 6; ++k) shapes->input(k, "f");
    shapes->require_positive("c");
    shapes->stride("hw", "HW", stride);
    shapes->output(0, "nHWf");
  }

  std::string activation;
  float epsilon = 0;
  int64_t stride = 1;
};

struct PointwiseRules : NormRules {
  void check(Shapes* shapes) const {
    NormRules::check(shapes, "11cf");
    shapes->require(stride == 1 && shapes->inputs() <= 7, "a kernel of one pixel needs stride 1, and at most one gate");
    if (shapes->inputs() > 6) shapes->input(6, "n11c");
  }
};

struct DepthwiseRules : NormRules {
  void check(Shapes* shapes) const {
    NormRules::check(shapes, "kl1f");
    shapes->divide('c', 'f', 1);
    shapes->require_positive("kl");
  }
};

// A convolution with batch norm and activation.
template <typename Rules>
class ConvNorm : public CheckedKernel<Rules> {
 public:
  using CheckedKernel<Rules>::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &weights = context->input(1);
    const int64_t filters = weights.dim_size(3), stride = this->rules_.stride;
    Tensor* y;
    const Axis rows(x.dim_size(1), weights.dim_size(0), stride), columns(x.dim_size(2), weights.dim_size(1), stride);
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({x.dim_size(0), rows.out, columns.out, filters}), &y));
    if (y->NumElements() == 0) return;
    std::vector<float> r(filters), factor(filters), shift(filters);
    invert(filters, numbers(context, 5), this->rules_.epsilon, r.data());
    scale(filters, numbers(context, 2), numbers(context, 3), numbers(context, 4), r.data(), factor.data(), shift.data());
    float* place = y->flat<float>().data();
    const bool past_cache = y->TotalBytes() > kOfCaches && filters % kLanes == 0 && reinterpret_cast<uintptr_t>(place) % kVectorBytes == 0;
    convolve(context, rows, columns, {factor.data(), shift.data(), place, filters, past_cache});
  }

  virtual void convolve(OpKernelContext* context, const Axis& rows, const Axis& columns, const Results& to) const = 0;
};

// A pointwise convolution, as a matrix product.
class PointwiseConvNorm : public ConvNorm<PointwiseRules> {
 public:
  using ConvNorm::ConvNorm;

 protected:
  void convolve(OpKernelContext* context, const Axis& rows, const Axis& columns, const Results& to) const override {
    const Tensor &x = context->input(0), &weights = context->input(1);
    const Tensor* gate = context->num_inputs() > 6 ? &context->input(6) : nullptr;
    const Pixels from{x.flat<float>().data(), gate ? gate->flat<float>().data() : nullptr, x.NumElements() / x.dim_size(3),
                      x.dim_size(1) * x.dim_size(2), x.dim_size(3)};
    const float* w = weights.flat<float>().data();
    with_activation(rules_.activation, [&](auto kind) { multiply<decltype(kind)::value>(context, from, w, to); });
  }
};

struct BiasRules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(context->GetAttr("activation", &activation));
    return context->GetAttr("of_mean", &of_mean);
  }

  void check(Shapes* shapes) const {
    shapes->input(0, "nhwc");
    shapes->input(1, "11cf");
    shapes->input(2, "f");
    shapes->require_positive(of_mean ? "hwc" : "c");
    shapes->output(0, of_mean ? "n11f" : "nhwf");
  }

  std::string activation;
  bool of_mean = false;
};

// A pointwise convolution with bias and activation. Its input is x, or with `of_mean` the mean over the pixels of each
// sample.
class PointwiseConvBias : public CheckedKernel<BiasRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &weights = context->input(1), &bias = context->input(2);
    const int64_t channels = x.dim_size(3), filters = bias.dim_size(0);
    const bool of_mean = rules_.of_mean;
    TensorShape shape = x.shape();
    if (of_mean) shape = TensorShape({x.dim_size(0), 1, 1, channels});
    const int64_t pixels = shape.num_elements() / channels;
    shape.set_dim(3, filters);
    Tensor* y;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &y));
    if (y->NumElements() == 0) return;
    const std::vector<float> ones(filters, 1.0f), means = of_mean ? means_of(context, x) : std::vector<float>();
    const Pixels from{of_mean ? means.data() : x.flat<float>().data(), nullptr, pixels, pixels / x.dim_size(0), channels};
    const Results to{ones.data(), bias.flat<float>().data(), y->flat<float>().data(), filters, false};
    const float* w = weights.flat<float>().data();
    with_activation(rules_.activation, [&](auto kind) { multiply<decltype(kind)::value>(context, from, w, to); });
  }

 private:
  static std::vector<float> means_of(OpKernelContext* context, const Tensor& x) {
    const Walk walk(x);
    BlockSums sums(walk);
    const float* from = x.flat<float>().data();
    in_shares(context, walk.batch * walk.blocks, kBlockPixels * walk.channels / 16, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t sample = k / walk.blocks, block = k % walk.blocks;
        sum_pixels(from + sample * walk.sample_size() + walk.start_of(block), walk.pixels_of(block), walk.channels,
                   sums.of(sample, block), [](float v, int64_t) { return v; });
      }
    });
    std::vector<float> means;
    for (int64_t sample = 0; sample < walk.batch; ++sample) {
      for (double total : sums.total(sample)) means.push_back(static_cast<float>(total / walk.pixels));
    }
    return means;
  }
};

class DepthwiseConvNorm : public ConvNorm<DepthwiseRules> {
 public:
  using ConvNorm::ConvNorm;

 protected:
  void convolve(OpKernelContext* context, const Axis& rows, const Axis& columns, const Results& to) const override {
    const Tensor &x = context->input(0), &weights = context->input(1);
    with_activation(rules_.activation, [&](auto kind) {
      const Image<decltype(kind)::value> image{rows, columns, x.dim_size(3), weights.flat<float>().data()};
      const int64_t panels = (image.channels + kTileChannels - 1) / kTileChannels, bands = (rows.out + kBandRows - 1) / kBandRows;
      // A work item has all panels of a row, because they read the same pixels. If there would be too few work items, it has
      // only some panels.
      const int64_t split = std::min<int64_t>((kUnits - 1) / (x.dim_size(0) * bands) + 1, panels), together = panels / split;
      const int64_t shares = (panels + together - 1) / together;
      const float* from = x.flat<float>().data();
      const int64_t cost = kBandRows * columns.out * together * (rows.kernel * columns.kernel / 2 + 8);
      in_shares(context, x.dim_size(0) * bands * shares, cost, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k) {
          const int64_t sample = k / shares / bands, first = k / shares % bands * kBandRows, share = k % shares * together;
          const float* own = from + sample * rows.in * columns.in * image.channels;
          for (int64_t row = first; row < std::min(first + kBandRows, rows.out); ++row) {
            if (together == panels && x.NumElements() > kNear) image.touch_row(own, row, row == first);
            for (int64_t panel = share; panel < std::min(share + together, panels); ++panel) {
              image.do_row(own, panel, row, to.at((sample * rows.out + row) * columns.out, panel * kTileChannels));
            }
          }
        }
        to.end();
      });
    });
  }

 private:
  // Computes the results of one image.
  template <Activation kind>
  struct Image {
    // Touches the pixels that the windows of a row need and the windows of the previous row did not.
    void touch_row(const float* x, int64_t row, bool is_first) const {
      const int64_t start = row * rows.stride - rows.before, end = std::min(start + rows.kernel, rows.in);
      const int64_t from = std::max<int64_t>(is_first ? start : start + rows.kernel - rows.stride, 0);
      if (from < end) touch(x + from * columns.in * channels, (end - from) * columns.in * channels);
    }

    void do_row(const float* x, int64_t panel, int64_t row, const Results& to) const {
      const int64_t channel = panel * kTileChannels, own = std::min(channels - channel, kTileChannels);
      if (own > kLanes) {
        do_columns<kTileVectors>(x, channel, own, row, to);
      } else {
        do_columns<1>(x, channel, own, row, to);
      }
    }

    template <int vectors>
    void do_columns(const float* x, int64_t channel, int64_t own, int64_t row, const Results& to) const {
      for (int64_t column = 0; column < columns.out; column += kTilePixels) {
        const Results here = to.at(column, 0);
        if (taps_of(columns, column).first == 0 && taps_of(columns, column + kTilePixels - 1).last == columns.kernel) {
          do_tile<true, vectors>(x, channel, own, row, column, here);
        } else {
          do_tile<false, vectors>(x, channel, own, row, column, here);
        }
      }
    }

    // Computes some pixels of a row. `inside` promises that no window extends beyond the edges of the image.
    template <bool inside, int vectors>
    void do_tile(const float* x, int64_t channel, int64_t own, int64_t row, int64_t column, const Results& to) const {
      const First last(own - (vectors - 1) * kLanes);
      auto read = [&last](const float* from, int v) {
        return v + 1 < vectors ? load(from + v * kLanes) : last.load(from + v * kLanes);
      };
      Lanes sums[kTilePixels][vectors];
      clear(sums);
      const int64_t left = column * columns.stride - columns.before, step = columns.stride * channels;
      const Taps down = taps_of(rows, row);
      for (int64_t i = down.first; i < down.last; ++i) {
        const float* line = x + ((row * rows.stride - rows.before + i) * columns.in + left) * channels + channel;
        const float* tap = w + i * columns.kernel * channels + channel;
        for (int64_t j = 0; j < columns.kernel; ++j, line += channels, tap += channels) {
          Lanes factors[vectors];
#pragma GCC unroll 2
          for (int v = 0; v < vectors; ++v) factors[v] = read(tap, v);
#pragma GCC unroll 8
          for (int p = 0; p < kTilePixels; ++p) {
            const int64_t place = left + j + p * columns.stride;
            const float* pixel = inside || (place >= 0 && place < columns.in) ? line + p * step : kOutside;
#pragma GCC unroll 2
            for (int v = 0; v < vectors; ++v) sums[p][v] = add_product(read(pixel, v), factors[v], sums[p][v]);
          }
        }
      }
      finish<kind>(sums, to, own, columns.out - column);
    }

    const Axis rows, columns;
    const int64_t channels;
    const float* w;
  };
};

REGISTER_OP("EmulatorPointwiseConvNorm")
    .Input("x: float").Input("weights: float")
    .Input("gamma: float").Input("beta: float").Input("mean: float").Input("variance: float").Input("gate: gates * float")
    .Attr(kActivationsOrGate).Attr("epsilon: float").Attr("stride: int >= 1").Attr("gates: int >= 0")
    .Output("y: float")
    .SetShapeFn(set_shapes<PointwiseRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorPointwiseConvNorm").Device(tensorflow::DEVICE_CPU), PointwiseConvNorm);

REGISTER_OP("EmulatorPointwiseConvBias")
    .Input("x: float").Input("weights: float").Input("bias: float")
    .Attr(kActivationsOrGate).Attr("of_mean: bool")
    .Output("y: float")
    .SetShapeFn(set_shapes<BiasRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorPointwiseConvBias").Device(tensorflow::DEVICE_CPU), PointwiseConvBias);

REGISTER_OP("EmulatorDepthwiseConvNorm")
    .Input("x: float").Input("weights: float")
    .Input("gamma: float").Input("beta: float").Input("mean: float").Input("variance: float")
    .Attr(kActivationsOrGate).Attr("epsilon: float").Attr("stride: int >= 1")
    .Output("y: float")
    .SetShapeFn(set_shapes<DepthwiseRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorDepthwiseConvNorm").Device(tensorflow::DEVICE_CPU), DepthwiseConvNorm);

}  // namespace
}  // namespace native
