#pragma once

#include "assembly/policy_vectors/vector_file_testing.h"

namespace penstock::assembly::vectors {

// Runs a case: its configuration goes through the loader, its requests through a director, and what was
// decided is held against the file. Nothing here computes a score. What differs is a test failure.
void run_case(const Case& vector);

}  // namespace penstock::assembly::vectors
