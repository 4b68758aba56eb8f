#pragma once

#include <string_view>

#include "inference/plugin.h"

namespace penstock {

// A plugin that binds sessions to endpoints. An endpoint that drains gets no new work, but is a candidate for
// requests of sessions that are bound to it.
class SessionHolder : public virtual Plugin {
 public:
  // Id of the endpoint the request's session is bound to; empty: none. Asked after the producers of the stage
  // kRequest; the text lives as long as the request.
  virtual std::string_view bound_endpoint(const SchedulingContext& ctx) const = 0;
};

}  // namespace penstock
