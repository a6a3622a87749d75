// Matrix products in tiles whose sums stay in registers, with vectors of any processor.
//
// Every number of a product is one sum, whose terms are added in order. So its bits depend neither on the number of threads,
// nor on the tiles, nor on other rows.

#ifndef EMULATOR_NATIVE_TILES_H_
#define EMULATOR_NATIVE_TILES_H_

#include "emulator/native/vector.h"

namespace native {

constexpr int64_t kDepth = 240;               // A strip has at most 240 columns; tiles of any height divide it.

// Adds a product to c [kTileRows, vectors * kLanes], whose rows have the distance `c_row`. Element (r, k) of a is at
// a[r * a_row + k * a_step]; b is [depth, vectors * kLanes].
template <int vectors, int64_t a_row, int64_t a_step>
inline void multiply_tile(const float* a, const float* b, int64_t depth, float* c, int64_t c_row) {
  Lanes sums[kTileRows][vectors];
#pragma GCC unroll 12
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[r][v] = load(c + r * c_row + v * kLanes);
  }
  for (int64_t k = 0; k < depth; ++k, a += a_step, b += vectors * kLanes) {
    Lanes columns[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) columns[v] = load(b + v * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kTileRows; ++r) {
      const Lanes factor = a[r * a_row] - Lanes{};  // the same number in all lanes
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[r][v] = add_product(factor, columns[v], sums[r][v]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) store(sums[r][v], c + r * c_row + v * kLanes);
  }
}

// The columns of a matrix in panels. A matrix with few columns has panels of one vector.
struct Panels {
  explicit Panels(int64_t columns, int64_t lanes = kLanes)
      : width(columns <= lanes ? lanes : 2 * lanes), count((columns + width - 1) / width), columns(columns) {}

  int64_t padded() const { return count * width; }

  int64_t width, count, columns;
};

// Adds a product to c [rows, all columns], for rows in whole tiles. b is [panels, depth, columns of a panel].
template <int64_t a_row, int64_t a_step>
inline void multiply_panels(const float* a, int64_t rows, const float* b, const Panels& panels, int64_t depth, float* c) {
  for (int64_t p = 0; p < panels.count; ++p, b += depth * panels.width) {
    for (int64_t r = 0; r < rows; r += kTileRows) {
      float* const to = c + r * panels.padded() + p * panels.width;
      if (panels.width == kLanes) {
        multiply_tile<1, a_row, a_step>(a + r * a_row, b, depth, to, panels.padded());
      } else {
        multiply_tile<2, a_row, a_step>(a + r * a_row, b, depth, to, panels.padded());
      }
    }
  }
}

}  // namespace native

#endif  // EMULATOR_NATIVE_TILES_H_
