#pragma once

#include <string>
#include <vector>

#include "simulator/fleet/bounds.h"
#include "simulator/fleet/fleet.h"

namespace penstock::simulator {

// All that one run of `penstock sim fleet` found out.
struct FleetComparison {
  std::string workload;
  uint64_t requests = 0;
  uint64_t input_tokens = 0;
  uint64_t output_tokens = 0;
  std::vector<FleetClass> classes;  // of the workload
  FleetOptions options;
  std::string profile;  // of the engines' step times; "rates": none
  FleetBound bound;
  std::vector<FleetReport> policies;
};

// A table for people: a line for each policy and one for the bound; a second one by class where there are
// classes. Ends with a line break.
std::string render_text(const FleetComparison& comparison);
// One object: {"workload": {…}, "fleet": {…}, "bound": {…}, "policies": [{…}]}; times with their unit in the
// name, ratios in [0, 1]. Ends with a line break.
std::string render_json(const FleetComparison& comparison);

}  // namespace penstock::simulator
