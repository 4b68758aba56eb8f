#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/backoff.h"
#include "base/clock.h"
#include "io/loop.h"
#include "kubernetes/api_client.h"
#include "kubernetes/json.h"

namespace penstock::kubernetes {

// What the condition Accepted of an object says.
struct Acceptance {
  bool accepted = true;
  std::string reason = "Accepted";
  std::string message;
};

// What an Event says of the object that it is about.
struct ObjectIdentity {
  std::string name;
  std::string uid;
  std::string resource_version;
};
ObjectIdentity identity_of(Json object);

// Writes the condition Accepted where an object does not say it yet, by server-side apply on its status, so
// that conditions of others stay; and an Event (type Warning) about what is not accepted. Level-triggered:
// told of every version of an object, it writes what differs, so that it makes no write for its own writes,
// several writers of the same opinion settle at once, and a write that failed is made at the object's next
// version at the latest. One write at a time. Where a verb is missing the log says so once, and nothing is
// written for ten minutes. Lives on the client's loop.
class ConditionWriter {
 public:
  static constexpr size_t kMaxWaiting = 10'000;  // objects; more are left out until they change

  // `may_write`: false while another replica does (leader election); what is wanted waits.
  ConditionWriter(ApiClient& api, std::function<bool()> may_write);

  void want(const Resource& resource, std::string_view ns, Json object, const Acceptance& acceptance);
  // An Event alone, for what has no such condition. The same text about the same object once.
  void warn(const Resource& resource, std::string_view ns, const ObjectIdentity& object,
            std::string_view reason, std::string_view message);
  // To be called when may_write() may have changed.
  void wake() { work_.set(); }
  io::Task<void> run(io::CancelToken token);

 private:
  struct Job {
    Resource resource;
    std::string ns;
    std::string name;
    std::string status;  // to be applied; "" none
    std::string event;   // to be created; "" none
  };
  std::string event_body(const Resource& resource, std::string_view ns, const ObjectIdentity& object,
                         std::string_view reason, std::string_view message) const;
  bool is_news(const std::string& key, std::string_view message);
  // True: done with, well or for good.
  bool took(const Failure& failure);

  ApiClient& api_;
  const std::function<bool()> may_write_;
  SystemClock clock_;
  io::Event work_;
  Backoff backoff_;
  std::map<std::string, Job, std::less<>> waiting_;
  std::map<std::string, std::string, std::less<>> warned_;  // object → last text
  TimePoint refused_until_ = kNever;
  std::string told_;
};

}  // namespace penstock::kubernetes
