#include "emulator/native/vector.h"

// What library.py asks these kernels: the numbers in a vector, and whether there are matrix units.
extern "C" {
extern const int emulator_lanes, emulator_units;
const int emulator_lanes = native::kLanes;
#ifdef __AMX_BF16__
const int emulator_units = 1;
#else
const int emulator_units = 0;
#endif
}
