#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "base/clock.h"
#include "io/task.h"
#include "kubernetes/api_client.h"

namespace penstock::discovery {

// A resource that a cluster may have or not, perhaps in one of two API groups: looks which, and again every
// now and then, for it may come or move. On the client's loop, but for state().
class OptionalKind {
 public:
  struct Options {
    // A plural of "": what the server calls the kind, as long as it can be listed and watched. Then the texts
    // are the caller's, and outlive this.
    kubernetes::Resource preferred;
    std::optional<kubernetes::Resource> legacy;  // is used with a warning where only that is there
    Duration look_again{0};
    // Between two answers that say neither yes nor no (Backoff).
    Duration retry_base{0};
    Duration retry_cap{0};
  };
  struct State {
    std::optional<kubernetes::Resource> followed;  // which was there last
    bool looked = false;                           // it is known whether there is one
    bool absent = false;                           // there is none now that can be followed
    std::string trouble;                           // why that is not known, or what is there instead
  };

  // `follow`: its objects are those of this resource from now on. `changed`: state() says something else.
  OptionalKind(kubernetes::ApiClient& api, Options options,
               std::function<void(const kubernetes::Resource&)> follow, std::function<void()> changed);
  OptionalKind(const OptionalKind&) = delete;
  OptionalKind& operator=(const OptionalKind&) = delete;

  // Until the token fires; the kind outlives it.
  io::Task<void> run(io::CancelToken token);
  // Calls `follow` once more, where there is something to follow.
  void follow_again() const;
  const std::optional<kubernetes::Resource>& followed() const { return state_.followed; }
  const Options& options() const { return options_; }
  // Any thread.
  State state() const;

 private:
  // What a discovery document says of the resource; nothing: it is not there, or (`why`) of no use.
  std::optional<kubernetes::Resource> served(kubernetes::Json document, const kubernetes::Resource& resource,
                                             std::string& why);
  // Which of the two the server has; an answer that says neither yes nor no is a failure.
  io::Task<kubernetes::Failure> look(io::CancelToken token, std::optional<kubernetes::Resource>& found,
                                     std::string& why);

  kubernetes::ApiClient& api_;
  const Options options_;
  const std::function<void(const kubernetes::Resource&)> follow_;
  const std::function<void()> changed_;
  std::deque<std::string> names_;  // plurals that were found: resources point to them
  mutable std::mutex mutex_;
  State state_;  // changed on the loop, under mutex_
};

}  // namespace penstock::discovery
