#pragma once

#include "inference/plugin.h"

namespace penstock::scheduling {

// `session-id-producer`: the request's session id, from a header or from a cookie. Cookies are split at ';',
// trimmed and split at the first '='; the first of that exact name counts, undecoded.
// Examples, cookieName sid: "a=1; sid=abc=x" gives abc=x; "SID=1" none.
class SessionIdProducer final : public DataProducer {
 public:
  static constexpr std::string_view kType = "session-id-producer";
  struct Params {
    std::string header;  // lower-case
    std::string cookie;
  };
  static void bind(config::Binder& b, Params& p);
  explicit SessionIdProducer(Params params) : params_(std::move(params)) {}

  Stage stage() const override { return Stage::kRequest; }
  void declare_data(DataDeclaration& declaration) const override;
  void bind_slots(const SlotResolver& slots) override;
  Status produce(SchedulingContext& ctx) const override;

 private:
  DataKey key() const { return data_keys::kSessionId.with_producer(name()); }

  Params params_;
  AttributeSlot slot_ = kNoSlot;
};

}  // namespace penstock::scheduling
