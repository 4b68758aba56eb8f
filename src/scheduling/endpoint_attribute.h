#pragma once

#include <optional>
#include <span>
#include <string>

#include "inference/plugin.h"
#include "scheduling/range.h"

namespace penstock::scheduling {

// The scraped number that endpoint-attribute-filter and -scorer look at. `producer` absent: the
// core-metrics-extractor's custom metric of that name; given, even as "": exactly that producer.
struct EndpointAttributeKey {
  std::string attribute;
  std::optional<std::string> producer;

  // `field`: the name of the attribute's parameter. A name with a slash and no producer is refused: it is
  // most likely a key's text form, and would never be found.
  void bind(config::Binder& b, std::string_view field, std::string_view doc);
  DataKey key() const { return {attribute, producer.value_or(data_keys::kWaitingQueueSize.producer)}; }
};

// Over the candidates whose number is known.
Range range_of(std::span<const EndpointScalar> column, std::span<const Candidate> candidates);

// "requests", "ratio"; "" where nobody says what it is, as of a custom metric.
std::string_view unit_of(const DataKey& key);

// "GPUUtilization 0.42 ratio, age 41 ms" or "GPUUtilization unknown". `unit`: as unit_of() gives it.
void append_scalar(const SchedulingContext& ctx, std::string_view name, std::string_view unit,
                   AttributeSlot slot, Candidate candidate, std::string& out);

}  // namespace penstock::scheduling
