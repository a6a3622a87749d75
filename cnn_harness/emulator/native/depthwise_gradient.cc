// The gradient of the weights of a depthwise convolution with SAME padding. x is [batch, height, width, channels], the weights
// are [kernel, kernel, channels, 1].
//
// Products of a tile of pixels are added in registers. Their sums are added in FP32 over the tiles and samples of a chunk,
// and in double precision over chunks. The order is fixed, so the number of threads changes no bit.

#include "emulator/native/products.h"

namespace native {
namespace {

constexpr int64_t kNear = 28 << 10;     // This many bytes of padded pixels of a tile stay in the first cache.
constexpr int64_t kTileColumns = 32;    // A tile has at most this many columns.
constexpr int64_t kTileLines = 8;       // A tile has at most this many rows.
constexpr int64_t kChunkPixels = 8192;  // A chunk of samples has at least this many pixels.
constexpr int64_t kItems = 8;           // If there would be fewer work items for threads, chunks are smaller.
constexpr int64_t kSums = 5 << 20;      // The sums of these smaller chunks take at most this many bytes.

// The vectors of channels, and the rows of the kernel, whose sums fit into the registers: 18 or 25 sums in 32 registers, 9 or
// 10 in 16.
template <int kernel>
constexpr int kVectors = (kernel == 3) == (kRegisters > 16) ? 2 : 1;
template <int kernel>
constexpr int kTapRows = kernel == 3 || kRegisters > 16 ? kernel : 1;

struct Sizes {
  Sizes(const TensorShape& x, int64_t kernel, int64_t stride)
      : batch(x.dim_size(0)), channels(x.dim_size(3)), rows(x.dim_size(1), kernel, stride),
        columns(x.dim_size(2), kernel, stride) {}

  TensorShape weights() const { return TensorShape({rows.kernel, columns.kernel, channels, 1}); }

  int64_t batch, channels;
  Axis rows, columns;
};

// A rectangle of results: first row, number of rows, first column, number of columns.
struct Tile {
  int64_t row, rows, column, columns;
};

// Copies the pixels of x that the windows of a tile need, for one panel of channels, with zeros outside the image.
template <int vectors>
void copy_pixels(const float* x, const Sizes& sizes, const Tile& tile, const First (&existing)[vectors], float* to) {
  const Axis &rows = sizes.rows, &columns = sizes.columns;
  const int64_t top = tile.row * rows.stride - rows.before, left = tile.column * columns.stride - columns.before;
  const int64_t width = (tile.columns - 1) * columns.stride + columns.kernel;
  const int64_t from = std::clamp<int64_t>(-left, 0, width), end = std::clamp<int64_t>(columns.in - left, from, width);
  auto zeros = [&to](int64_t pixels) {
    for (int64_t k = 0; k < pixels * vectors; ++k, to += kLanes) store(Lanes{}, to);
  };
  for (int64_t r = 0; r < (tile.rows - 1) * rows.stride + rows.kernel; ++r) {
    const int64_t row = top + r;
    if (row < 0 || row >= rows.in) {
      zeros(width);
      continue;
    }
    zeros(from);
    const float* pixel = x + (row * columns.in + left + from) * sizes.channels;
    for (int64_t k = from; k < end; ++k, pixel += sizes.channels, to += vectors * kLanes) {
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) store(existing[v].load(pixel + v * kLanes), to + v * kLanes);
    }
    zeros(width - end);
  }
}

// Adds the products of the copied pixels of a tile with the gradients to sums [rows, kernel, vectors], for some rows of the
// kernel. `pixels` begins with the first of these rows.
template <int rows, int kernel, int vectors>
void add_products(const float* pixels, const float* dy, const Sizes& sizes, const Tile& tile, const First (&existing)[vectors],
                  float* sums) {
  constexpr int64_t kPixel = vectors * kLanes;
  const int64_t stride = sizes.columns.stride, line = ((tile.columns - 1) * stride + kernel) * kPixel;
  Lanes own[rows * kernel][vectors];
  clear(own);
  for (int64_t r = 0; r < tile.rows; ++r) {
    const float* gradient = dy + ((tile.row + r) * sizes.columns.out + tile.column) * sizes.channels;
    const float* window = pixels + r * stride * line;
    for (int64_t c = 0; c < tile.columns; ++c, gradient += sizes.channels, window += stride * kPixel) {
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        const Lanes factor = existing[v].load(gradient + v * kLanes);
#pragma GCC unroll 25
        for (int k = 0; k < rows * kernel; ++k) {
          const float* const pixel = window + k / kernel * line + k % kernel * kPixel + v * kLanes;
          own[k][v] = add_product(load(pixel), factor, own[k][v]);
        }
      }
    }
  }
#pragma GCC unroll 25
  for (int k = 0; k < rows * kernel; ++k) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v, sums += kLanes) store(load(sums) + own[k][v], sums);
  }
}

// Adds the products of a sample to the sums of some panels of channels, [panels, kernel, kernel, vectors].
template <int kernel>
void add_sample(const float* x, const float* dy, const Sizes& sizes, int64_t first_panel, int64_t last_panel, float* sums) {
  constexpr int vectors = kVectors<kernel>;
  constexpr int64_t kPixel = vectors * kLanes;
  const Axis &rows = sizes.rows, &columns = sizes.columns;
  const int64_t stride = rows.stride, tiles = (columns.out + kTileColumns - 1) / kTileColumns;
  const int64_t widest = (columns.out + tiles - 1) / tiles, line = ((widest - 1) * stride + kernel) * kPixel;
  const int64_t fitting = (kNear / 4 / line - kernel) / stride + 1, per_block = std::clamp<int64_t>(fitting, 1, kTileLines);
  const int64_t blocks = (rows.out + per_block - 1) / per_block;
  const bool is_whole = last_panel - first_panel == (sizes.channels + kPixel - 1) / kPixel;
  static thread_local std::vector<Lanes> pixels;
  pixels.resize(((per_block - 1) * stride + kernel) * line / kLanes);
  float* const near = reinterpret_cast<float*>(pixels.data());
  for (int64_t block = 0; block < blocks; ++block) {
    Tile tile = {rows.out * block / blocks, 0, 0, 0};
    tile.rows = rows.out * (block + 1) / blocks - tile.row;
    if (is_whole) {  // all channels of these rows are read, one panel after the other
      const int64_t seen = std::clamp<int64_t>((tile.row - 1) * stride - rows.before + kernel, 0, rows.in);
      const int64_t end = std::clamp<int64_t>((tile.row + tile.rows - 1) * stride - rows.before + kernel, seen, rows.in);
      touch(x + seen * columns.in * sizes.channels, (end - seen) * columns.in * sizes.channels);
      touch(dy + tile.row * columns.out * sizes.channels, tile.rows * columns.out * sizes.channels);
    }
    for (int64_t panel = first_panel; panel < last_panel; ++panel) {
      const int64_t channel = panel * kPixel;
      First existing[vectors];  // the channels of each vector that exist
      for (int v = 0; v < vectors; ++v) existing[v] = First(sizes.channels - channel - v * kLanes);
      for (int64_t t = 0; t < tiles; ++t) {
        tile.column = columns.out * t / tiles, tile.columns = columns.out * (t + 1) / tiles - tile.column;
        copy_pixels<vectors>(x + channel, sizes, tile, existing, near);
        for (int i = 0; i < kernel; i += kTapRows<kernel>) {
          const float* const from = near + i * ((tile.columns - 1) * stride + kernel) * kPixel;
          float* const to = sums + (panel * kernel + i) * kernel * kPixel;
          add_products<kTapRows<kernel>, kernel>(from, dy + channel, sizes, tile, existing, to);
        }
      }
    }
  }
}

struct Rules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(read_size(context, "stride", &stride));
    TF_RETURN_IF_ERROR(read_size(context, "kernel", &kernel, kMostKernel));
    return kernel == 3 || kernel == 5 ? absl::OkStatus() : InvalidArgument("kernel must be 3 or 5, not ", kernel);
  }

  void check(Shapes* shapes) const {
    shapes->set('k', kernel);
    shapes->input(0, "nhwc");
    shapes->stride("hw", "HW", stride);
    shapes->input(1, "nHWc");
    shapes->output(0, "kkc1");
  }

  int64_t stride, kernel;
};

class DepthwiseWeightsGradient : public CheckedKernel<Rules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    if (rules_.kernel == 3) return differentiate<3>(context);
    differentiate<5>(context);
  }

 private:
  template <int kernel>
  void differentiate(OpKernelContext* context) const {
    const Tensor &input = context->input(0), &above = context->input(1);
    const Sizes sizes(input.shape(), kernel, rules_.stride);
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, sizes.weights(), &output));
    constexpr int64_t kPixel = kVectors<kernel> * kLanes, kTaps = kernel * kernel;
    const int64_t panels = (sizes.channels + kPixel - 1) / kPixel, size = panels * kTaps * kPixel;
    const int64_t pixels = sizes.rows.out * sizes.columns.out;
    if (output->NumElements() == 0) return;
    const int64_t wanted = std::max<int64_t>({sizes.batch * pixels / kChunkPixels, std::min(kItems, kSums / (4 * size)), 1});
    const int64_t chunk = (sizes.batch + wanted - 1) / wanted, chunks = chunk ? (sizes.batch + chunk - 1) / chunk : 0;
    const int64_t together = std::min(std::max<int64_t>(chunks * panels / kItems, 1), panels);
    const int64_t pieces = chunks >= kItems ? 1 : (panels + together - 1) / together, own = (panels + pieces - 1) / pieces;
    Tensor kept;  // the sums, [chunks, panels, kernel, kernel, channels of a panel]
    OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_FLOAT, TensorShape({chunks * size}), &kept));
    float* const sums = kept.flat<float>().data();
    std::fill(sums, sums + chunks * size, 0.0f);
    const float *x = input.flat<float>().data(), *dy = above.flat<float>().data();
    const int64_t of_x = sizes.rows.in * sizes.columns.in * sizes.channels, of_dy = pixels * sizes.channels;
    in_shares(context, chunks * pieces, chunk * pixels * own * kTaps + 1, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t part = k / pieces, from = k % pieces * own, to = std::min(from + own, panels);
        for (int64_t n = part * chunk; n < std::min((part + 1) * chunk, sizes.batch) && from < to && pixels > 0; ++n) {
          add_sample<kernel>(x + n * of_x, dy + n * of_dy, sizes, from, to, sums + part * size);
        }
      }
    });
    float* const dw = output->flat<float>().data();
    in_shares(context, panels, chunks * kTaps * kPixel / 4 + 1, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) {
        double total[kTaps * kPixel] = {};
        for (int64_t part = 0; part < chunks; ++part) {
          const float* own = sums + part * size + panel * kTaps * kPixel;
          for (int64_t k = 0; k < kTaps * kPixel; ++k) total[k] += own[k];
        }
        const int64_t channel = panel * kPixel, left = std::min(kPixel, sizes.channels - channel);
        for (int64_t tap = 0; tap < kTaps; ++tap) {
          for (int64_t c = 0; c < left; ++c) {
            dw[tap * sizes.channels + channel + c] = static_cast<float>(total[tap * kPixel + c]);
          }
        }
      }
    });
  }
};

REGISTER_OP("EmulatorDepthwiseWeightsGradient")
    .Input("x: float").Input("dy: float")
    .Output("dw: float")
    .Attr("stride: int >= 1")
    .Attr("kernel: int >= 1")
    .SetShapeFn(set_shapes<Rules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorDepthwiseWeightsGradient").Device(tensorflow::DEVICE_CPU), DepthwiseWeightsGradient);

}  // namespace
}  // namespace native
