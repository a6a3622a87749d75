// The gradient of the weights of a convolution in groups of 16 channels, x [batch, height, width, channels] by weights [kernel,
// kernel, 16, channels], SAME padding, for processors with vectors of 16 numbers (AVX-512): a vector is one pixel of a group.
//
// The pixels of some rows are added in registers, the sums of rows and samples in FP32 and those of chunks of samples in double
// precision, all in a fixed order: the number of threads changes no bit.

#ifdef __AVX512F__

#include <immintrin.h>

#include "emulator/native/threads.h"
#include "emulator/native/windows.h"

namespace native {
namespace {

constexpr int64_t kGroup = 16;          // channels, and numbers of a vector
constexpr int64_t kScratch = 96 << 10;  // bytes of a group's rows that are laid side by side, so that they stay in the cache
constexpr int64_t kChunkPixels = 8192;  // of a chunk of samples, at least

struct Sizes {
  Sizes(const TensorShape& x, int64_t kernel, int64_t stride)
      : batch(x.dim_size(0)), channels(x.dim_size(3)), groups(channels / kGroup), taps(kernel * kernel),
        rows(x.dim_size(1), kernel, stride), columns(x.dim_size(2), kernel, stride) {}

  TensorShape out() const { return TensorShape({batch, rows.out, columns.out, channels}); }
  TensorShape weights() const { return TensorShape({rows.kernel, columns.kernel, kGroup, channels}); }

  int64_t batch, channels, groups, taps;
  Axis rows, columns;
};

// Lays one group's pixels of a row of an image side by side.
void copy_row(const float* row, int64_t columns, int64_t channels, float* to) {
  for (int64_t c = 0; c < columns; ++c, row += channels, to += kGroup) _mm512_storeu_ps(to, _mm512_loadu_ps(row));
}

// Adds the products of one tap over the pixels of some rows: sums [16 read, 16 made] += x^T dy.
void add_products(const float* x, int64_t x_step, int64_t x_row, const float* dy, int64_t dy_row, int64_t rows, int64_t columns,
                  float* sums) {
  __m512 own[kGroup];
#pragma GCC unroll 16
  for (int c = 0; c < kGroup; ++c) own[c] = _mm512_setzero_ps();
  for (int64_t r = 0; r < rows; ++r, x += x_row, dy += dy_row) {
    const float *pixel = x, *gradient = dy;
    for (int64_t k = 0; k < columns; ++k, pixel += x_step, gradient += kGroup) {
      const __m512 d = _mm512_loadu_ps(gradient);
#pragma GCC unroll 16
      for (int c = 0; c < kGroup; ++c) own[c] = _mm512_fmadd_ps(_mm512_set1_ps(pixel[c]), d, own[c]);
    }
  }
#pragma GCC unroll 16
  for (int c = 0; c < kGroup; ++c, sums += kGroup) _mm512_storeu_ps(sums, _mm512_add_ps(_mm512_loadu_ps(sums), own[c]));
}

class ConvWeightsGradient : public OpKernel {
 public:
  explicit ConvWeightsGradient(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("stride", &stride_));
    OP_REQUIRES_OK(context, context->GetAttr("kernel", &kernel_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &input = context->input(0), &above = context->input(1);
    OP_REQUIRES(context, input.dims() == 4 && input.dim_size(3) % kGroup == 0,
                InvalidArgument("x has four axes, and groups of 16 channels"));
    const Sizes sizes(input.shape(), kernel_, stride_);
    OP_REQUIRES(context, above.shape() == sizes.out(), InvalidArgument("dy has the result's shape"));
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, sizes.weights(), &output));
    const float *x = input.flat<float>().data(), *dy = above.flat<float>().data();
    const Axis &rows = sizes.rows, &columns = sizes.columns;
    const int64_t pixels = std::max<int64_t>(rows.out * columns.out, 1), size = sizes.taps * kGroup * kGroup;
    const int64_t chunk = (kChunkPixels + pixels - 1) / pixels, chunks = (sizes.batch + chunk - 1) / chunk;
    std::vector<float> sums(chunks * sizes.groups * size, 0.0f);
    in_threads(context, chunks * sizes.groups, chunk * pixels * sizes.taps * 3, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t first = k / sizes.groups * chunk;
        for (int64_t n = first; n < std::min(first + chunk, sizes.batch); ++n) {
          add_sample(x, dy, sizes, n, k % sizes.groups, &sums[k * size]);
        }
      }
    });
    float* dw = output->flat<float>().data();
    in_threads(context, sizes.groups, chunks * size, [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) {
        for (int64_t row = 0; row < sizes.taps * kGroup; ++row) {
          double total[kGroup] = {};
          for (int64_t k = 0; k < chunks; ++k) {
            const float* own = &sums[(k * sizes.groups + g) * size + row * kGroup];
            for (int64_t o = 0; o < kGroup; ++o) total[o] += own[o];
          }
          for (int64_t o = 0; o < kGroup; ++o) dw[row * sizes.channels + g * kGroup + o] = static_cast<float>(total[o]);
        }
      }
    });
  }

 private:
  static void add_sample(const float* x, const float* dy, const Sizes& sizes, int64_t n, int64_t g, float* sums) {
    const Axis &rows = sizes.rows, &columns = sizes.columns;
    const int64_t stride = rows.stride, x_row = columns.in * kGroup, dy_row = columns.out * kGroup;
    const int64_t per_block = std::max<int64_t>(kScratch / (4 * (stride * x_row + dy_row)) - rows.kernel, 1);
    std::vector<float> x_rows((per_block * stride + rows.kernel) * x_row), dy_rows(per_block * dy_row);
    for (int64_t first = 0; first < rows.out; first += per_block) {
      const int64_t end = std::min(first + per_block, rows.out);
      const int64_t top = std::max<int64_t>(first * stride - rows.before, 0);
      const int64_t bottom = std::min((end - 1) * stride - rows.before + rows.kernel, rows.in);
      for (int64_t r = top; r < bottom; ++r) {
        copy_row(x + (n * rows.in + r) * columns.in * sizes.channels + g * kGroup, columns.in, sizes.channels,
                 &x_rows[(r - top) * x_row]);
      }
      for (int64_t r = first; r < end; ++r) {
        copy_row(dy + (n * rows.out + r) * columns.out * sizes.channels + g * kGroup, columns.out, sizes.channels,
                 &dy_rows[(r - first) * dy_row]);
      }
      float* own = sums;
      for (int64_t i = 0; i < rows.kernel; ++i) {
        for (int64_t j = 0; j < columns.kernel; ++j, own += kGroup * kGroup) {
          // of the results whose tap is inside of the image
          const int64_t from_row = std::max(first, -floor_div(i - rows.before, stride));
          const int64_t to_row = std::min(end, floor_div(rows.in - 1 - i + rows.before, stride) + 1);
          const int64_t from = std::max<int64_t>(0, -floor_div(j - columns.before, stride));
          const int64_t to = std::min(columns.out, floor_div(columns.in - 1 - j + columns.before, stride) + 1);
          if (from_row >= to_row || from >= to) continue;
          const int64_t row = from_row * stride + i - rows.before - top, column = from * stride + j - columns.before;
          add_products(&x_rows[row * x_row + column * kGroup], stride * kGroup, stride * x_row,
                       &dy_rows[(from_row - first) * dy_row + from * kGroup], dy_row, to_row - from_row, to - from, own);
        }
      }
    }
  }

  int64_t stride_, kernel_;
};

REGISTER_OP("EmulatorGroupConvWeightsGradient")
    .Input("x: float").Input("dy: float")
    .Output("dw: float")
    .Attr("stride: int >= 1")
    .Attr("kernel: int >= 1")
    .SetShapeFn([](InferenceContext* context) {
      int64_t kernel;
      TF_RETURN_IF_ERROR(context->GetAttr("kernel", &kernel));
      context->set_output(0, context->MakeShape({kernel, kernel, 16, context->Dim(context->input(0), 3)}));
      return tensorflow::OkStatus();
    });
REGISTER_KERNEL_BUILDER(Name("EmulatorGroupConvWeightsGradient").Device(tensorflow::DEVICE_CPU), ConvWeightsGradient);

}  // namespace
}  // namespace native

#endif  // __AVX512F__
