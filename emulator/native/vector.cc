#include "emulator/native/vector.h"

// The numbers in a vector of these kernels; library.py reads it.
extern "C" {
extern const int emulator_lanes;
const int emulator_lanes = native::kLanes;
}
