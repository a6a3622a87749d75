// Matrix products in tiles whose sums stay in registers, with vectors of any processor.
//
// Every number of a product is one sum, whose terms are added in order. So its bits depend neither on the number of threads,
// nor on the tiles, nor on other rows.

#ifndef EMULATOR_NATIVE_TILES_H_
#define EMULATOR_NATIVE_TILES_H_

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif

namespace native {

// Sums take most registers: 24 of 32 with AVX-512, 12 of 16 with AVX2, 8 of 16 elsewhere.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kTileRows = 12;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kTileRows = 6;
#else
constexpr int kVectorBytes = 16, kTileRows = 4;
#endif

typedef float Lanes __attribute__((vector_size(kVectorBytes)));
constexpr int64_t kLanes = kVectorBytes / sizeof(float);
constexpr int64_t kDepth = 240;               // A strip has at most 240 columns; tiles of any height divide it.

inline Lanes load(const float* from) {
  Lanes x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}

inline void store(const Lanes& x, float* to) { std::memcpy(to, &x, sizeof(x)); }

// Returns a * b + c. Processors with FMA round only once.
inline Lanes add_product(Lanes a, Lanes b, Lanes c) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

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
