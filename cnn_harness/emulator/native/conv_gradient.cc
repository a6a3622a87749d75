// The gradient of the weights of a convolution with SAME padding. x is [batch, height, width, channels], the weights are
// [kernel, kernel, channels of a group, filters]. convolution.cc computes this gradient for more sizes. But it copies every
// pixel for every tap, so it takes up to five times as long for groups of 16 channels, and four times for three channels.
//
// Products of some rows of pixels are added in registers. Their sums are added in FP32 over rows and samples of a chunk, and
// in double precision over chunks. The order is fixed, so the number of threads changes no bit.

#include <array>
#include <utility>

#include "emulator/native/products.h"

namespace native {
namespace {

constexpr int64_t kNear = 24 << 10;       // This many bytes of dy stay in the first cache.
constexpr int64_t kCached = 384 << 10;    // This many bytes of rows of x stay in the second cache.
constexpr int64_t kChunkPixels = 8192;    // A chunk of samples has at least this many pixels.
constexpr int64_t kItems = 8;             // If there would be fewer work items for threads, chunks are smaller.
constexpr int64_t kSums = 5 << 20;        // The sums of these smaller chunks take at most this many bytes.
constexpr int kTallest = kRegisters / 2;  // A tile of one vector has at most this many rows.
constexpr int64_t kPage = 128;            // Pixels with a multiple of 128 channels share cache lines.

// Computes sums [rows, vectors] += x^T dy over the pixels of some lines. dy is contiguous. If `begin` is true, the sums are
// overwritten instead.
template <int rows, int vectors>
void add_products(const float* x, int64_t x_step, int64_t x_line, const float* dy, int64_t lines, int64_t columns, bool begin,
                  float* sums) {
  Lanes own[rows][vectors];
  clear(own);
  for (int64_t line = 0; line < lines; ++line, x += x_line) {
    const float* pixel = x;
    for (int64_t k = 0; k < columns; ++k, pixel += x_step, dy += vectors * kLanes) add_step(pixel, dy, own);
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows && !begin; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) own[r][v] = load(sums + (r * vectors + v) * kLanes) + own[r][v];
  }
  store(own, sums, vectors * kLanes);
}

using AddProducts = void (*)(const float*, int64_t, int64_t, const float*, int64_t, int64_t, bool, float*);

template <int vectors, int... heights>
constexpr std::array<AddProducts, sizeof...(heights)> adders(std::integer_sequence<int, heights...>) {
  return {&add_products<heights + 1, vectors>...};
}

inline void copy(const float* from, int64_t numbers, float* to) {
  for (; numbers >= kLanes; numbers -= kLanes, from += kLanes, to += kLanes) store(load(from), to);
  if (numbers) First(numbers).store(First(numbers).load(from), to);
}

struct Sizes {
  Sizes(const TensorShape& x, int64_t filters, int64_t kernel, int64_t stride, int64_t groups)
      : batch(x.dim_size(0)), all_channels(x.dim_size(3)), all_filters(filters), groups(groups), channels(all_channels / groups),
        filters(filters / groups), panel(this->filters % kPanel ? kLanes : kPanel), panels(this->filters / panel),
        rows(x.dim_size(1), kernel, stride), columns(x.dim_size(2), kernel, stride),
        window(channels < kTileRows ? kernel * channels : channels), windows(kernel * channels / window),
        pixel(channels % kPage || windows == 1 ? channels : channels + kLine),
        line(((columns.out - 1) * stride + kernel) * pixel) {}

  TensorShape weights() const { return TensorShape({rows.kernel, columns.kernel, channels, all_filters}); }
  int64_t numbers() const { return rows.kernel * columns.kernel * channels * panel; }  // number of weights of a panel

  int64_t batch, all_channels, all_filters, groups;
  int64_t channels, filters;  // channels and filters of a group.
  int64_t panel, panels;      // filters of a panel, which are summed together, and number of panels.
  Axis rows, columns;
  int64_t window, windows;    // length of a contiguous run of x in a kernel row, and number of runs
  int64_t pixel, line;        // distance between pixels, and between rows, of the padded image.
};

struct Rules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(read_size(context, "stride", &stride));
    TF_RETURN_IF_ERROR(read_size(context, "kernel", &kernel, kMostKernel));
    return read_size(context, "groups", &groups);
  }

  void check(Shapes* shapes) const {
    shapes->set('k', kernel);
    shapes->input(0, "nhwc");
    shapes->stride("hw", "HW", stride);
    shapes->input(1, "nHWf");
    shapes->require_positive("cf");
    shapes->divide('c', 'i', groups);
    shapes->divide('f', 'v', groups * kWhole);  // each group needs whole vectors of filters
    shapes->output(0, "kkif");
  }

  int64_t stride, kernel, groups;
};

class ConvWeightsGradient : public CheckedKernel<Rules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor &input = context->input(0), &above = context->input(1);
    const Sizes sizes(input.shape(), above.dim_size(3), rules_.kernel, rules_.stride, rules_.groups);
    const float *x = numbers(context, 0), *dy = numbers(context, 1);
    float* dw;
    OP_REQUIRES_OK(context, allocate(context, {{sizes.weights(), &dw}}));
    const int64_t pixels = sizes.rows.out * sizes.columns.out, size = sizes.numbers(), panels = sizes.groups * sizes.panels;
    const int64_t shared = std::min((kItems + sizes.groups - 1) / sizes.groups, kSums / (4 * panels * size));
    const int64_t wanted = std::max<int64_t>({sizes.batch * pixels / kChunkPixels, shared, 1});
    const int64_t batch = pixels ? sizes.batch : 0;
    const int64_t chunk = (batch + wanted - 1) / wanted, chunks = chunk ? (batch + chunk - 1) / chunk : 0;
    const int64_t together = std::min(std::max<int64_t>(chunks * panels / kItems, 1), sizes.panels);
    const int64_t pieces = (sizes.panels + together - 1) / together;     // work items for the panels of a group
    Tensor kept;  // the sums, [chunks, panels of all groups, weights, panel].
    OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_FLOAT, TensorShape({chunks * panels * size}), &kept));
    float* const sums = kept.flat<float>().data();
    in_threads(context, chunks * sizes.groups * pieces, chunk * pixels * together * size / 64 + 1, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t piece = k % pieces, group = k / pieces % sizes.groups, part = k / (pieces * sizes.groups);
        const int64_t from = group * sizes.panels + piece * together, to = std::min(from + together, (group + 1) * sizes.panels);
        for (int64_t n = part * chunk; n < std::min((part + 1) * chunk, sizes.batch); ++n) {
          add_sample(x, dy, sizes, n, from, to, n == part * chunk, sums + part * panels * size);
        }
      }
    });
    const int64_t weights = size / sizes.panel;  // number of weights of a filter
    in_threads(context, panels * weights, chunks * sizes.panel + 1, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        double total[kPanel] = {};
        for (int64_t c = 0; c < chunks; ++c) {
          const float* own = sums + c * panels * size + k * sizes.panel;
          for (int64_t o = 0; o < sizes.panel; ++o) total[o] += own[o];
        }
        float* const to = dw + k % weights * sizes.all_filters + k / weights * sizes.panel;
        for (int64_t o = 0; o < sizes.panel; ++o) to[o] = static_cast<float>(total[o]);
      }
    });
  }

 private:
  // Adds the products of a sample to the sums of some panels of filters of one group. `begin` is the same as in
  // add_products.
  static void add_sample(const float* x, const float* dy, const Sizes& sizes, int64_t n, int64_t first_panel, int64_t last_panel,
                         bool begin, float* sums) {
    constexpr auto kTwo = adders<2>(std::make_integer_sequence<int, kTileRows>());
    constexpr auto kOne = adders<1>(std::make_integer_sequence<int, kTallest>());
    const Axis &rows = sizes.rows, &columns = sizes.columns;
    const bool is_wide = sizes.panel > kLanes;
    const int64_t stride = rows.stride, of_line = columns.out * sizes.panel;
    const int64_t near = kNear / (4 * of_line), cached = (kCached / (4 * sizes.line) - rows.kernel) / stride;
    const int64_t per_block = std::max<int64_t>(std::min(near, cached), 1);
    const int64_t tiles = (sizes.window - 1) / (is_wide ? kTileRows : kTallest) + 1;
    static thread_local std::vector<float> x_lines, dy_lines;
    x_lines.assign(((per_block - 1) * stride + rows.kernel) * sizes.line, 0.0f);
    dy_lines.resize(per_block * of_line);
    x += n * rows.in * columns.in * sizes.all_channels + first_panel / sizes.panels * sizes.channels;
    dy += n * rows.out * columns.out * sizes.all_filters;
    for (int64_t first = 0; first < rows.out; first += per_block) {
      const int64_t end = std::min(first + per_block, rows.out), top = first * stride - rows.before;
      for (int64_t r = std::max<int64_t>(top, 0); r < std::min((end - 1) * stride - rows.before + rows.kernel, rows.in); ++r) {
        copy_line(x + r * columns.in * sizes.all_channels, sizes, &x_lines[(r - top) * sizes.line]);
      }
      for (int64_t panel = first_panel; panel < last_panel; ++panel) {
        const float* gradient = dy + first * columns.out * sizes.all_filters + panel * sizes.panel;
        float* to = dy_lines.data();
        for (int64_t p = 0; p < (end - first) * columns.out; ++p, gradient += sizes.all_filters, to += sizes.panel) {
          copy(gradient, sizes.panel, to);
        }
        float* own = sums + panel * sizes.numbers();
        for (int64_t i = 0; i < rows.kernel; ++i) {
          // The first result for which this tap is inside the image.
          const int64_t from = std::max(first, -floor_div(i - rows.before, stride));
          const int64_t to = std::max(std::min(end, floor_div(rows.in - 1 - i + rows.before, stride) + 1), from);
          const float* const line = x_lines.data() + ((from - first) * stride + i) * sizes.line;
          for (int64_t j = 0; j < sizes.windows; ++j) {
            for (int64_t tile = 0; tile < tiles; ++tile) {
              const int64_t c = tile * sizes.window / tiles, height = (tile + 1) * sizes.window / tiles - c;
              const AddProducts add = is_wide ? kTwo[height - 1] : kOne[height - 1];
              add(line + j * sizes.pixel + c, stride * sizes.pixel, stride * sizes.line, &dy_lines[(from - first) * of_line],
                  to - from, columns.out, begin && first == 0, own);
              own += height * sizes.panel;
            }
          }
        }
      }
    }
  }

  // Copies the channels of a group from an image row, with zeros on both sides as padding.
  static void copy_line(const float* row, const Sizes& sizes, float* to) {
    const Axis& columns = sizes.columns;
    to += columns.before * sizes.pixel;
    const int64_t seen = std::min(columns.in, (columns.out - 1) * columns.stride + columns.kernel - columns.before);
    if (sizes.pixel == sizes.all_channels) return copy(row, seen * sizes.pixel, to);
    for (int64_t c = 0; c < seen; ++c, row += sizes.all_channels, to += sizes.pixel) copy(row, sizes.channels, to);
  }
};

REGISTER_OP("EmulatorConvWeightsGradient")
    .Input("x: float").Input("dy: float")
    .Output("dw: float")
    .Attr("stride: int >= 1")
    .Attr("kernel: int >= 1")
    .Attr("groups: int >= 1")
    .SetShapeFn(set_shapes<Rules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorConvWeightsGradient").Device(tensorflow::DEVICE_CPU), ConvWeightsGradient);

}  // namespace
}  // namespace native
