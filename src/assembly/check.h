#pragma once

#include <string>

#include "assembly/assembly.h"

namespace penstock::assembly {

// What `penstock check` prints of a configuration that loads: the effective configuration in the
// reference's grammar, profiles with their slots, order of the data producers, producers that were created
// because data was missing, sources, flow control, warnings and notices. Plain text, one fact a line.
std::string render_check(const Assembly& assembly);

}  // namespace penstock::assembly
