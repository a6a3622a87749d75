// Products of matrices that were packed before, which are added to sums in memory. See products.h about their order.

#ifndef EMULATOR_NATIVE_TILES_H_
#define EMULATOR_NATIVE_TILES_H_

#include "emulator/native/products.h"

namespace native {

inline int64_t round_up(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

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
    add_step([a](int r) { return a[r * a_row]; }, columns, sums);
  }
  store(sums, c, c_row);
}

// The columns of a matrix in panels. A matrix with few columns has panels of one vector.
struct Panels {
  explicit Panels(int64_t columns, int64_t lanes = kLanes)
      : width(columns <= lanes ? lanes : 2 * lanes), count((columns + width - 1) / width) {}

  int64_t padded() const { return count * width; }

  int64_t width, count;
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
