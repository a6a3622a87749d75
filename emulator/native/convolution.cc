// Convolutions with SAME padding, their gradients with respect to input and weights, and the rounding of results, for tensors
// of FP32 or 16 bits. x is [batch, height, width, channels], the weights are [kernel, kernel, channels of a group, filters].
//
// All three are products of matrices. A row of the first matrix has the pixels under one window; rows are gathered in FP32 in
// strips that stay in the caches. Sums are FP32. The gradient of the weights adds the sums of parts of the batch in double
// precision and in a fixed order, so the number of threads changes no bit.

#include <memory>

#include "emulator/native/results.h"
#include "emulator/native/storage.h"
#include "emulator/native/tiles.h"
#include "emulator/native/windows.h"

namespace native {
namespace {

constexpr int64_t kStripRows = 48;      // A strip has at most 48 rows; tiles of any height divide it.
constexpr int64_t kPixels = 96;         // The gradient of the weights takes this many pixels at a time.
constexpr int64_t kColumns = 256;       // A work item of this gradient has at most this many filters.
constexpr int64_t kPartPixels = 8192;   // A part of the batch has about this many pixels.
constexpr int64_t kItems = 8;           // If there would be fewer work items for threads, there are more parts.

static_assert(kStripRows % kTileRows == 0 && kDepth % kTileRows == 0);

// A tensor of images, of which each group of a convolution reads some channels.
struct Images {
  Images(const Tensor& tensor, int64_t groups)
      : batch(tensor.dim_size(0)), rows(tensor.dim_size(1)), columns(tensor.dim_size(2)), channels(tensor.dim_size(3)),
        of_group(channels / groups) {}

  int64_t pixels() const { return rows * columns; }

  int64_t batch, rows, columns, channels, of_group;
};

// Which pixels of a source a target pixel reads. Target (r, c) reads the source pixels (r * step + tap row, c * step + tap
// column) for every tap. Pixels outside the source are 0.
struct Window {
  struct Tap {
    int64_t row, column;
  };

  int64_t step = 1;
  std::vector<Tap> taps;
};

// The targets of a window, a grid of pixels of an image: pixel (first_row + r * spacing, first_column + c * spacing).
struct Targets {
  int64_t pixel(int64_t r, int64_t c) const { return (first_row + r * spacing) * width + first_column + c * spacing; }

  int64_t rows, columns, width, first_row = 0, first_column = 0, spacing = 1;
};

// A target: its sample, row and column.
struct Place {
  Place(const Targets& targets, int64_t index)
      : sample(index / (targets.rows * targets.columns)), row(index / targets.columns % targets.rows),
        column(index % targets.columns) {}

  void advance(const Targets& targets) {
    if (++column < targets.columns) return;
    column = 0;
    if (++row < targets.rows) return;
    row = 0;
    ++sample;
  }

  int64_t sample, row, column;
};

// Gathers columns [begin, end) of the rows of a matrix, `count` rows beginning with target `first`, into a strip whose rows have
// the distance kDepth. Column tap * (channels of a group) + c has channel c of the pixel of this tap.
template <typename T>
void gather(const T* x, const Images& images, int64_t group, const Window& window, const Targets& targets, int64_t first,
            int64_t count, int64_t begin, int64_t end, float* strip) {
  const int64_t channels = images.of_group;
  Place place(targets, first);
  for (int64_t k = 0; k < count; ++k, place.advance(targets), strip += kDepth) {
    const T* const sample = x + place.sample * images.pixels() * images.channels + group * channels;
    float* to = strip;
    for (int64_t column = begin; column < end;) {
      const int64_t tap = column / channels, channel = column % channels, run = std::min(channels - channel, end - column);
      const int64_t row = place.row * window.step + window.taps[tap].row, c = place.column * window.step + window.taps[tap].column;
      if (row >= 0 && row < images.rows && c >= 0 && c < images.columns) {
        widen(sample + (row * images.columns + c) * images.channels + channel, run, to);
      } else {
        std::fill(to, to + run, 0.0f);
      }
      column += run;
      to += run;
    }
  }
}

// Weights in the order in which a product reads them: [groups, parts of the depth, panels, depth of a part, columns of a
// panel]. `weight(group, tap, channel, filter)` returns a weight.
class Packed {
 public:
  template <typename Weight>
  Packed(OpKernelContext* context, int64_t groups, int64_t taps, int64_t channels, int64_t filters, Weight weight)
      : panels(filters), depth_(taps * channels), numbers_(groups * depth_ * panels.padded()) {
    in_threads(context, groups * depth_, filters, [&](int64_t from, int64_t to) {
      for (int64_t row = from; row < to; ++row) {
        const int64_t group = row / depth_, k = row % depth_, part = k / kDepth * kDepth;
        const int64_t depth = std::min(kDepth, depth_ - part);
        float* const own = &numbers_[(group * depth_ + part) * panels.padded() + (k - part) * panels.width];
        for (int64_t f = 0; f < filters; ++f) {
          own[f / panels.width * depth * panels.width + f % panels.width] = weight(group, k / channels, k % channels, f);
        }
      }
    });
  }

  int64_t depth() const { return depth_; }

  const float* part(int64_t group, int64_t begin) const { return &numbers_[(group * depth_ + begin) * panels.padded()]; }

  const Panels panels;

 private:
  const int64_t depth_;
  std::vector<float> numbers_;
};

// The memory of a thread.
struct Memory {
  static Memory& own() {
    static thread_local Memory memory;
    return memory;
  }

  // Returns memory for at least `count` numbers.
  static float* of(std::vector<float>* memory, int64_t count) {
    if (static_cast<int64_t>(memory->size()) < count) memory->resize(count);
    return memory->data();
  }

  std::vector<float> strip, columns, sums, row;
};

// Computes the results at the targets: each is the product of the window's pixels with the weights, rounded.
void convolve(OpKernelContext* context, const Tensor& x, int64_t groups, const Window& window, const Targets& targets,
              const Packed& weights, const Results& results, Tensor* y) {
  const Images images(x, groups);
  const int64_t count = images.batch * targets.rows * targets.columns, strips = (count + kStripRows - 1) / kStripRows;
  const int64_t filters = y->dim_size(3), of_group = filters / groups, pixels = y->dim_size(1) * y->dim_size(2);
  const int64_t padded = weights.panels.padded(), depth = weights.depth();
  const Writer writer(y);
  with_storage(x.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* const from = x.flat<T>().data();
    in_shares(context, strips * groups, kStripRows * (depth + 8) * padded / 32 + 1, [&](int64_t begin, int64_t end) {
      Memory& memory = Memory::own();
      float* const strip = Memory::of(&memory.strip, kStripRows * kDepth);
      float* const sums = Memory::of(&memory.sums, kStripRows * padded);
      for (int64_t item = begin; item < end; ++item) {
        const int64_t group = item % groups, first = item / groups * kStripRows, rows = std::min(kStripRows, count - first);
        const int64_t whole = (rows + kTileRows - 1) / kTileRows * kTileRows;
        std::fill(sums, sums + whole * padded, 0.0f);
        for (int64_t part = 0; part < depth; part += kDepth) {
          const int64_t own = std::min(kDepth, depth - part);
          gather(from, images, group, window, targets, first, rows, part, part + own, strip);
          multiply_panels<kDepth, 1>(strip, whole, weights.part(group, part), weights.panels, own, sums);
        }
        Place place(targets, first);
        for (int64_t r = 0; r < rows; ++r, place.advance(targets)) {
          const int64_t index = targets.pixel(place.row, place.column) * filters + group * of_group;
          const int64_t start = place.sample * pixels * filters + index;
          float* const to = writer.begin(start, of_group, &memory.row);
          results.round(sums + r * padded, of_group, place.sample, static_cast<uint32_t>(index), to);
          writer.end(start, of_group, memory.row);
        }
      }
    });
  });
}

// The sizes of a convolution.
struct SizeRules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(read_size(context, "stride", &stride));
    return read_size(context, "groups", &groups);
  }

  int64_t stride = 1, groups = 1;
};

struct ForwardRules : SizeRules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(SizeRules::read(context));
    return rounding.read(context);
  }

  void check(Shapes* shapes) const {
    shapes->input(0, "nhwc");
    shapes->input(1, "klif");
    shapes->require_positive("klcf");
    shapes->divide('c', 'i', groups);
    shapes->divide('f', 'g', groups);
    shapes->stride("hw", "HW", stride);
    rounding.check(shapes, 2);
    shapes->output(0, "nHWf");
  }

  ResultRounding rounding;
};

class Convolution : public CheckedKernel<ForwardRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &w = context->input(1);
    const int64_t stride = rules_.stride, groups = rules_.groups, filters = w.dim_size(3), of_group = filters / groups;
    const Axis rows(x.dim_size(1), w.dim_size(0), stride), columns(x.dim_size(2), w.dim_size(1), stride);
    Tensor* y;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({x.dim_size(0), rows.out, columns.out, filters}), &y));
    if (y->NumElements() == 0) return;
    Window window;
    window.step = stride;
    for (int64_t i = 0; i < rows.kernel; ++i) {
      for (int64_t j = 0; j < columns.kernel; ++j) window.taps.push_back({i - rows.before, j - columns.before});
    }
    const int64_t channels = w.dim_size(2);
    const float* numbers = w.flat<float>().data();
    const Packed weights(context, groups, window.taps.size(), channels, of_group, [&](int64_t g, int64_t tap, int64_t c, int64_t f) {
      return numbers[(tap * channels + c) * filters + g * of_group + f];
    });
    const Targets targets{rows.out, columns.out, columns.out};
    convolve(context, x, groups, window, targets, weights, rules_.rounding.results(context, 2, x.dim_size(0)), y);
  }
};

struct InputGradientRules : ForwardRules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(ForwardRules::read(context));
    TF_RETURN_IF_ERROR(read_size(context, "rows", &rows));
    return read_size(context, "columns", &columns);
  }

  void check(Shapes* shapes) const {
    shapes->set('h', rows);
    shapes->set('w', columns);
    shapes->stride("hw", "HW", stride);
    shapes->input(0, "nHWf");
    shapes->input(1, "klif");
    shapes->require_positive("kli");
    shapes->divide('f', 'g', groups);
    shapes->divide('c', 'i', groups);
    rounding.check(shapes, 2);
    shapes->output(0, "nhwc");
  }

  int64_t rows = 1, columns = 1;
};

// The gradient of a convolution's input. With a stride of s, the pixels of the input have s * s phases. The pixels of one phase
// are under the same taps of the windows that contain them.
class InputGradient : public CheckedKernel<InputGradientRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor &dy = context->input(0), &w = context->input(1);
    const int64_t stride = rules_.stride, groups = rules_.groups, filters = w.dim_size(3), of_group = filters / groups;
    const int64_t channels = w.dim_size(2);
    const Axis rows(rules_.rows, w.dim_size(0), stride), columns(rules_.columns, w.dim_size(1), stride);
    Tensor* dx;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({dy.dim_size(0), rows.in, columns.in, channels * groups}), &dx));
    if (dx->NumElements() == 0) return;
    const Results results = rules_.rounding.results(context, 2, dy.dim_size(0));
    const float* numbers = w.flat<float>().data();
    for (int64_t row = 0; row < std::min(stride, rows.in); ++row) {
      for (int64_t column = 0; column < std::min(stride, columns.in); ++column) {
        Window window;
        std::vector<int64_t> taps;
        for (int64_t i = 0; i < rows.kernel; ++i) {
          for (int64_t j = 0; j < columns.kernel; ++j) {
            const int64_t r = row + rows.before - i, c = column + columns.before - j;
            if (r % stride || c % stride) continue;
            window.taps.push_back({r / stride, c / stride});
            taps.push_back(i * columns.kernel + j);
          }
        }
        const Packed weights(context, groups, taps.size(), of_group, channels, [&](int64_t g, int64_t tap, int64_t f, int64_t c) {
          return numbers[(taps[tap] * channels + c) * filters + g * of_group + f];
        });
        const Targets targets{(rows.in - row + stride - 1) / stride, (columns.in - column + stride - 1) / stride, columns.in,
                              row, column, stride};
        convolve(context, dy, groups, window, targets, weights, results, dx);
      }
    }
  }
};

struct WeightsGradientRules : SizeRules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(SizeRules::read(context));
    return read_size(context, "kernel", &kernel, kMostKernel);
  }

  void check(Shapes* shapes) const {
    shapes->set('k', kernel);
    shapes->input(0, "nhwc");
    shapes->stride("hw", "HW", stride);
    shapes->input(1, "nHWf");
    shapes->require_positive("cf");
    shapes->divide('c', 'i', groups);
    shapes->divide('f', 'g', groups);
    shapes->output(0, "kkif");
  }

  int64_t kernel = 1;
};

class WeightsGradient : public CheckedKernel<WeightsGradientRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &dy = context->input(1);
    const int64_t groups = rules_.groups, kernel = rules_.kernel, stride = rules_.stride;
    const Images images(x, groups), gradients(dy, groups);
    const Axis rows(images.rows, kernel, stride), columns(images.columns, kernel, stride);
    const int64_t filters = gradients.channels, of_group = gradients.of_group, depth = kernel * kernel * images.of_group;
    Tensor* dw;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({kernel, kernel, images.of_group, filters}), &dw));
    Window window;
    window.step = stride;
    for (int64_t i = 0; i < kernel; ++i) {
      for (int64_t j = 0; j < kernel; ++j) window.taps.push_back({i - rows.before, j - columns.before});
    }
    const Targets targets{rows.out, columns.out, columns.out};
    // A work item has some rows (taps and channels) and columns (filters) of the weights of a group, and a part of the batch.
    const int64_t strips = (depth + kDepth - 1) / kDepth, blocks = (of_group + kColumns - 1) / kColumns;
    const int64_t pixels = gradients.pixels(), batch = pixels ? images.batch : 0, items = groups * strips * blocks;
    const int64_t wanted = std::max(batch * pixels / kPartPixels, (kItems + items - 1) / items);
    const int64_t samples = std::max<int64_t>((batch + wanted - 1) / std::max<int64_t>(wanted, 1), 1);
    const int64_t parts = (batch + samples - 1) / samples;
    const int64_t tall = (std::min(kDepth, depth) + kTileRows - 1) / kTileRows * kTileRows;
    const Panels widest(std::min(kColumns, of_group));
    const int64_t size = tall * widest.padded();
    Tensor kept;  // the sums, [work items, parts, rows, columns].
    OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_FLOAT, TensorShape({items * parts * size}), &kept));
    float* const sums = kept.flat<float>().data();
    auto of_item = [&](int64_t item) {
      struct Item {
        int64_t group, row, rows, column, columns;
      };
      const int64_t row = item / blocks % strips * kDepth, column = item % blocks * kColumns;
      return Item{item / (blocks * strips), row, std::min(kDepth, depth - row), column, std::min(kColumns, of_group - column)};
    };
    with_storage(x.dtype(), [&](auto* x_type) {
      with_storage(dy.dtype(), [&](auto* dy_type) {
        const auto* const from = x.flat<std::remove_pointer_t<decltype(x_type)>>().data();
        const auto* const above = dy.flat<std::remove_pointer_t<decltype(dy_type)>>().data();
        in_shares(context, items * parts, samples * pixels * tall * widest.padded() / 32 + 1, [&](int64_t begin, int64_t end) {
          Memory& memory = Memory::own();
          float* const strip = Memory::of(&memory.strip, kPixels * kDepth);
          float* const arriving = Memory::of(&memory.columns, kPixels * widest.padded());
          for (int64_t k = begin; k < end; ++k) {
            const auto item = of_item(k / parts);
            const Panels panels(item.columns);
            float* const own = sums + k * size;
            std::fill(own, own + size, 0.0f);
            const int64_t last = std::min(k % parts * samples + samples, batch) * pixels;
            for (int64_t first = k % parts * samples * pixels; first < last; first += kPixels) {
              const int64_t count = std::min(kPixels, last - first);
              gather(from, images, item.group, window, targets, first, count, item.row, item.row + item.rows, strip);
              const auto* gradient = above + first * filters + item.group * of_group + item.column;
              for (int64_t p = 0; p < count; ++p, gradient += filters) {
                for (int64_t c = 0; c < item.columns; c += panels.width) {
                  float* const to = arriving + c * count + p * panels.width;
                  const int64_t width = std::min(panels.width, item.columns - c);
                  widen(gradient + c, width, to);
                  std::fill(to + width, to + panels.width, 0.0f);
                }
              }
              const int64_t whole = (item.rows + kTileRows - 1) / kTileRows * kTileRows;
              multiply_panels<1, kDepth>(strip, whole, arriving, panels, count, own);
            }
          }
        });
      });
    });
    float* const to = dw->flat<float>().data();
    in_threads(context, items * tall, parts * widest.padded() + 1, [&](int64_t begin, int64_t end) {
      std::vector<double> total(widest.padded());
      for (int64_t k = begin; k < end; ++k) {
        const auto item = of_item(k / tall);
        const int64_t row = k % tall, padded = Panels(item.columns).padded();
        if (row >= item.rows) continue;
        std::fill(total.begin(), total.end(), 0.0);
        for (int64_t part = 0; part < parts; ++part) {
          const float* const own = sums + (k / tall * parts + part) * size + row * padded;
          for (int64_t c = 0; c < item.columns; ++c) total[c] += own[c];
        }
        float* const own = to + (item.row + row) * filters + item.group * of_group + item.column;
        for (int64_t c = 0; c < item.columns; ++c) own[c] = static_cast<float>(total[c]);
      }
    });
  }
};

REGISTER_OP("EmulatorConvolution")
    .Input("x: T").Input("weights: float").Input("noise: count * uint64")
    .Attr("stride: int >= 1").Attr("groups: int >= 1")
    .Attr(kRoundings).Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds)
    .Attr("count: int >= 0").Attr("salt: int = 0").Attr(kStorage).Attr(kReturnedStorage)
    .Output("y: V")
    .SetShapeFn(set_shapes<ForwardRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorConvolution").Device(tensorflow::DEVICE_CPU), Convolution);

REGISTER_OP("EmulatorConvolutionInputGradient")
    .Input("dy: U").Input("weights: float").Input("noise: count * uint64")
    .Attr("stride: int >= 1").Attr("groups: int >= 1").Attr("rows: int >= 1").Attr("columns: int >= 1")
    .Attr(kRoundings).Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds)
    .Attr("count: int >= 0").Attr("salt: int = 0").Attr(kArrivingStorage).Attr(kReturnedStorage)
    .Output("dx: V")
    .SetShapeFn(set_shapes<InputGradientRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorConvolutionInputGradient").Device(tensorflow::DEVICE_CPU), InputGradient);

REGISTER_OP("EmulatorConvolutionWeightsGradient")
    .Input("x: T").Input("dy: U")
    .Attr("stride: int >= 1").Attr("groups: int >= 1").Attr("kernel: int >= 1").Attr(kStorage).Attr(kArrivingStorage)
    .Output("dw: float")
    .SetShapeFn(set_shapes<WeightsGradientRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorConvolutionWeightsGradient").Device(tensorflow::DEVICE_CPU), WeightsGradient);

}  // namespace
}  // namespace native
