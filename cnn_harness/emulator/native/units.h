// Products of narrow numbers in the matrix units of a processor (AMX), for operands that are sums of BF16 numbers.
//
// A BF16 number has 8 significant bits, so an FP16 number is exactly the sum of two of them, and an FP32 number of three. The
// product of two such sums is the sum of all products of their parts. Each of these products is exact in FP32, and so is their
// sum. Sums over terms are FP32. Parts below 2^-126 count as zero, and the product of infinity with a number may be a NaN.
//
// All instructions are in the class `Unit`. Where there are no matrix units, a class of the same functions in plain
// C++ takes their place, so that packing, splitting and edges can be tested on every processor.

#ifndef EMULATOR_NATIVE_UNITS_H_
#define EMULATOR_NATIVE_UNITS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "emulator/native/storage.h"
#include "emulator/native/tiles.h"

#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace native {

constexpr int64_t kTile = 16;         // A tile has 16 rows of 16 sums, of 16 pairs of BF16 numbers, or of 16 FP32 numbers.
constexpr int64_t kTileDepth = 32;    // A product of two tiles sums over 32 terms.

#ifdef __AMX_BF16__

// The eight tile registers of the thread.
class Unit {
 public:
  // Returns whether Linux lets the process use the registers.
  static bool available() {
    constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool given = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
    return given;
  }

  Unit() {
    struct {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } layout;
    for (int t = 0; t < 8; ++t) layout.bytes[t] = 64, layout.rows[t] = kTile;
    asm volatile("ldtilecfg (%0)" ::"r"(&layout) : "memory");
  }
  ~Unit() { asm volatile("tilerelease"); }
  Unit(const Unit&) = delete;

  template <int t> void load(const void* from, int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_bytes), "i"(t) : "memory");
  }
  template <int t> void store(void* to, int64_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_bytes), "i"(t) : "memory");
  }
  template <int sums, int a, int b> void add_product() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(a), "i"(b));
  }
};

#else

class Unit {
 public:
  static bool available() { return true; }

  template <int t> void load(const void* from, int64_t row_bytes) {
    for (int64_t r = 0; r < kTile; ++r) std::memcpy(&tiles_[t][r], static_cast<const char*>(from) + r * row_bytes, sizeof(Row));
  }
  template <int t> void store(void* to, int64_t row_bytes) {
    for (int64_t r = 0; r < kTile; ++r) std::memcpy(static_cast<char*>(to) + r * row_bytes, &tiles_[t][r], sizeof(Row));
  }
  template <int sums, int a, int b> void add_product() {
    for (int64_t r = 0; r < kTile; ++r) {
      float own[kTile] = {};
      for (int64_t k = 0; k < kTile; ++k) {
        const uint32_t pair = tiles_[a][r][k];
        for (int64_t c = 0; c < kTile; ++c) {
          const uint32_t other = tiles_[b][k][c];
          own[c] += number(pair << 16) * number(other << 16) + number(pair & 0xFFFF0000) * number(other & 0xFFFF0000);
        }
      }
      for (int64_t c = 0; c < kTile; ++c) {
        tiles_[sums][r][c] = __builtin_bit_cast(uint32_t, number(tiles_[sums][r][c]) + own[c]);
      }
    }
  }

 private:
  using Row = std::array<uint32_t, kTile>;
  static float number(uint32_t bits) { return __builtin_bit_cast(float, bits); }
  std::array<Row, kTile> tiles_[8];
};

#endif

typedef uint32_t WordRow __attribute__((vector_size(4 * kTile)));
typedef float FloatRow __attribute__((vector_size(4 * kTile)));
typedef uint16_t PartRow __attribute__((vector_size(2 * kTile)));

// The number of BF16 parts of a type of tensors.
template <typename T>
constexpr int kPartsOf = std::is_same_v<T, float> ? 3 : std::is_same_v<T, Half> ? 2 : 1;

inline int parts_of(const tensorflow::Tensor& x) {
  return x.dtype() == tensorflow::DT_HALF ? kPartsOf<Half> : x.dtype() == tensorflow::DT_BFLOAT16 ? kPartsOf<BFloat> : kPartsOf<float>;
}

// Splits 16 FP32 numbers into `parts` BF16 parts, and calls `store(part, numbers)` for each.
template <int parts, typename Store>
inline void split_row(const float (&row)[kTile], Store store) {
  constexpr uint32_t kHigh = 0xFFFF0000, kInfinite = 0x7F800000;
  WordRow left = __builtin_bit_cast(WordRow, row);
#pragma GCC unroll 3
  for (int p = 0; p < parts; ++p) {
    store(p, __builtin_convertvector(left >> 16, PartRow));
    const FloatRow rest = (FloatRow)left - (FloatRow)(left & kHigh);
    left = (left & kInfinite) == kInfinite ? WordRow{} : (WordRow)rest;  // infinity has no other parts, nor has a NaN
  }
}

// Splits numbers into BF16 parts: part p of number k goes to to[p * plane + k].
template <typename T>
inline void split(const T* from, int64_t count, uint16_t* to, int64_t plane) {
  constexpr int kParts = kPartsOf<T>;
  if (kParts == 1) return std::copy_n(reinterpret_cast<const uint16_t*>(from), count, to), void();
  int64_t k = 0;
  for (; k + kTile <= count; k += kTile) {
    float row[kTile];
    widen(from + k, kTile, row);
    split_row<kParts>(row, [=](int p, const PartRow& part) { std::memcpy(to + p * plane + k, &part, sizeof(part)); });
  }
  if (k == count) return;
  float row[kTile] = {};
  widen(from + k, count - k, row);
  split_row<kParts>(row, [=](int p, const PartRow& part) {
    for (int64_t i = 0; i < count - k; ++i) to[p * plane + k + i] = part[i];
  });
}

// Adds the products of `rows` x `columns` tiles, at most 2 x 2, to sums whose rows have the distance `sums_row`. Tile (r, k) of
// part p of a is at a(p, r, k), tile (k, c) of b at b(p, k, c). Their rows have the distances `a_row` and `b_row`.
template <int rows, int columns, typename A, typename B>
inline void add_tiles(Unit* unit, int64_t depth, int a_parts, int b_parts, A a, int64_t a_row, B b, int64_t b_row, float* sums,
                      int64_t sums_row) {
  constexpr int64_t kNumber = sizeof(uint16_t);
  const int64_t row_bytes = sums_row * sizeof(float);
  float *const right = sums + kTile, *const below = sums + kTile * sums_row;
  unit->load<0>(sums, row_bytes);
  if constexpr (columns == 2) unit->load<1>(right, row_bytes);
  if constexpr (rows == 2) unit->load<2>(below, row_bytes);
  if constexpr (rows == 2 && columns == 2) unit->load<3>(below + kTile, row_bytes);
  for (int64_t k = 0; k < depth; ++k) {
    for (int p = 0; p < a_parts; ++p) {
      unit->load<4>(a(p, 0, k), a_row * kNumber);
      if constexpr (rows == 2) unit->load<5>(a(p, 1, k), a_row * kNumber);
      for (int q = 0; q < b_parts; ++q) {
        const int part = p % 2 ? b_parts - 1 - q : q;
        if (p == 0 || q > 0) {  // otherwise the tiles of b are still there
          unit->load<6>(b(part, k, 0), b_row * kNumber);
          if constexpr (columns == 2) unit->load<7>(b(part, k, 1), b_row * kNumber);
        }
        unit->add_product<0, 4, 6>();
        if constexpr (columns == 2) unit->add_product<1, 4, 7>();
        if constexpr (rows == 2) unit->add_product<2, 5, 6>();
        if constexpr (rows == 2 && columns == 2) unit->add_product<3, 5, 7>();
      }
    }
  }
  unit->store<0>(sums, row_bytes);
  if constexpr (columns == 2) unit->store<1>(right, row_bytes);
  if constexpr (rows == 2) unit->store<2>(below, row_bytes);
  if constexpr (rows == 2 && columns == 2) unit->store<3>(below + kTile, row_bytes);
}

// Operands of a convolution as BF16 parts. A strip has a plane of `kPlane` numbers for each part.
class Units {
 public:
  using Number = uint16_t;
  static constexpr int64_t kRows = 64, kPixels = 128, kDepth = 256, kHeight = kTile, kStep = kTileDepth, kParts = 3;
  static constexpr int64_t kPlane = kPixels * kDepth;

  static Panels panels(int64_t columns) { return Panels(columns, kTile); }

  // Copies numbers of a row of a strip.
  template <typename T>
  static void put(const T* from, int64_t count, Number* to) { split(from, count, to, kPlane); }

  static void clear(int64_t count, Number* to) {
    for (int64_t p = 0; p < kParts; ++p) std::fill_n(to + p * kPlane, count, 0);
  }

  // Stores rows k and k + 1 of a panel of weights [parts, depth / 2, columns, 2], where k is even. Returns the number of parts
  // that are not all zero.
  static int put_weights(const float (&rows)[2][2 * kTile], int64_t k, int64_t depth, int64_t width, Number* to) {
    Number parts[2][kParts][2 * kTile];
    for (int r = 0; r < 2; ++r) split(rows[r], width, parts[r][0], 2 * kTile);
    int count = 1;
    for (int p = 0; p < kParts; ++p, to += depth * width) {
      pair(parts[0][p], parts[1][p], width, to + k * width);
      const bool is_zero = std::all_of(to + k * width, to + (k + 2) * width, [](Number x) { return !(x & 0x7FFF); });
      if (!is_zero) count = p + 1;
    }
    return count;
  }

  // Adds strip [rows, depth] times weights to sums.
  void multiply(const Number* strip, int parts, int64_t rows, const Number* weights, int weight_parts, const Panels& panels,
                int64_t depth, float* sums) {
    const int64_t padded = round_up(depth, kStep), width = panels.width;
    for (int64_t p = 0; p < panels.count; ++p, weights += kParts * padded * width, sums += width) {
      add(rows, width, padded / kStep, parts, weight_parts,
          [=](int part, int64_t row, int64_t k) { return strip + part * kPlane + row * kDepth + k * kStep; }, kDepth,
          [=](int part, int64_t k, int64_t c) { return weights + (part * padded + k * kStep) * width + 2 * c; }, 2 * width,
          sums, panels.padded());
    }
  }

  // Stores a row of the gradient dy, of `count` columns.
  template <typename T>
  static void put_gradient(const T* from, int64_t row, int64_t, int64_t columns, const Panels& panels, Number* to) {
    split(from, columns, to + row * panels.padded(), kPixels * panels.padded());
  }

  // Adds strip^T [rows, pixels] times gradients [pixels, columns] to sums.
  void multiply_transposed(Number* strip, int parts, int64_t rows, Number* gradients, int gradient_parts, const Panels& panels,
                           int64_t pixels, float* sums) {
    static thread_local std::vector<Number> kept;
    const int64_t blocks = (pixels + kStep - 1) / kStep, tiles = rows / kTile, width = panels.width, padded = panels.padded();
    const int64_t of_part = blocks * kStep * width, tile = kTile * kStep;
    kept.resize(parts * blocks * tiles * tile + gradient_parts * of_part * panels.count);
    Number *const a = kept.data(), *const b = a + parts * blocks * tiles * tile;
    for (int64_t p = pixels; p < blocks * kStep; ++p) {
      clear(rows, strip + p * kDepth);
      for (int part = 0; part < gradient_parts; ++part) std::fill_n(gradients + (part * kPixels + p) * padded, padded, 0);
    }
    for (int part = 0; part < parts; ++part) {
      for (int64_t t = 0; t < tiles; ++t) {
        for (int64_t k = 0; k < blocks; ++k) {
          float pairs[kTile * kTile];  // only their bits matter
          const Number* from = strip + part * kPlane + k * kStep * kDepth + t * kTile;
          for (int64_t r = 0; r < kTile; ++r, from += 2 * kDepth) pair(from, from + kDepth, kTile, pairs + r * kTile);
          float* const to = reinterpret_cast<float*>(a + ((part * tiles + t) * blocks + k) * tile);
          for (int64_t r = 0; r < kTile; r += kLanes) {
            for (int64_t c = 0; c < kTile; c += kLanes) transpose(pairs + r * kTile + c, kTile, to + c * kTile + r, kTile);
          }
        }
      }
    }
    for (int part = 0; part < gradient_parts; ++part) {
      for (int64_t p = 0; p < blocks * kStep; p += 2) {
        const Number* const from = gradients + (part * kPixels + p) * padded;
        for (int64_t c = 0; c < panels.count; ++c) {
          pair(from + c * width, from + padded + c * width, width, b + (c * gradient_parts + part) * of_part + p * width);
        }
      }
    }
    for (int64_t c = 0; c < panels.count; ++c, sums += width) {
      const Number* const own = b + c * gradient_parts * of_part;
      add(rows, width, blocks, parts, gradient_parts,
          [=](int part, int64_t row, int64_t k) { return a + ((part * tiles + row / kTile) * blocks + k) * tile; }, kStep,
          [=](int part, int64_t k, int64_t column) { return own + part * of_part + k * kStep * width + 2 * column; }, 2 * width,
          sums, padded);
    }
  }

 private:
  // Interleaves two rows: to = [columns, 2].
  static void pair(const Number* first, const Number* second, int64_t columns, void* to) {
    for (int64_t c = 0; c < columns; ++c) {
      const uint32_t both = first[c] | static_cast<uint32_t>(second[c]) << 16;
      std::memcpy(static_cast<char*>(to) + c * sizeof(both), &both, sizeof(both));
    }
  }

  template <typename A, typename B>
  void add(int64_t rows, int64_t width, int64_t depth, int a_parts, int b_parts, A a, int64_t a_row, B b, int64_t b_row,
           float* sums, int64_t sums_row) {
    auto tiles = [&](auto height, auto columns, int64_t r) {
      add_tiles<decltype(height)::value, decltype(columns)::value>(
          &unit_, depth, a_parts, b_parts, [&](int part, int64_t t, int64_t k) { return a(part, r + t * kTile, k); }, a_row,
          [&](int part, int64_t k, int64_t t) { return b(part, k, t * kTile); }, b_row, sums + r * sums_row, sums_row);
    };
    constexpr std::integral_constant<int, 1> one;
    constexpr std::integral_constant<int, 2> two;
    for (int64_t r = 0; r < rows; r += 2 * kTile) {
      const bool tall = rows - r > kTile, wide = width > kTile;
      tall ? wide ? tiles(two, two, r) : tiles(two, one, r) : wide ? tiles(one, two, r) : tiles(one, one, r);
    }
  }

  Unit unit_;
};

}  // namespace native

#endif  // EMULATOR_NATIVE_UNITS_H_
