#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "io/loop.h"
#include "kubernetes/reflector.h"
#include "kubernetes/store.h"

namespace penstock::kubernetes {

// The objects of one resource that a query selects. Another query may take its place while it runs: the
// former's picture then serves until the new one is whole. On the client's loop, except state().
template <typename Record>
class Follower {
 public:
  // `changed`: on the loop, at the end of a batch that changed current(), and when it is whole for the first
  // time. `told`: when state() changed. All outlive the loop's tasks.
  Follower(ApiClient& api, Metrics& metrics, typename Store<Record>::Decode decode,
           std::function<void()> changed, std::function<void()> told)
      : api_(api),
        metrics_(metrics),
        decode_(std::move(decode)),
        changed_(std::move(changed)),
        told_(std::move(told)) {}
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  void follow(ReflectorOptions options) {
    auto feed = std::make_shared<Feed>(*this, std::move(options));
    feed->cancel.follow(api_.loop().shutdown_token());
    std::shared_ptr<Feed> former;
    {
      const std::lock_guard lock(mutex_);
      former = std::exchange(next_, feed);
    }
    if (former) former->cancel.cancel();
    ++running_;
    io::spawn(api_.loop(), run(this, feed));
  }
  // Ends what runs, for good; the picture stays. Before the loop ends a follower may go once idle() is true.
  void end() {
    std::shared_ptr<Feed> ended[2];
    {
      const std::lock_guard lock(mutex_);
      ended[0] = next_;
      ended[1] = current_;
    }
    for (const auto& feed : ended) {
      if (feed) feed->cancel.cancel();
    }
  }
  bool idle() const { return running_ == 0; }
  // Nullptr until a list was seen whole. Valid until the loop's next turn.
  const Store<Record>* current() const { return current_ ? &current_->store : nullptr; }
  // current() is of the newest query.
  bool whole() const { return current_ != nullptr && next_ == nullptr; }
  // Of the newest query; nothing before the first. Any thread.
  std::optional<ReflectorState> state() const {
    // Under the lock: who would let go of a feed last must be the loop.
    const std::lock_guard lock(mutex_);
    const Feed* feed = next_ ? next_.get() : current_.get();
    if (feed == nullptr) return std::nullopt;
    ReflectorState state = feed->reflector.state();
    if (next_ && current_) state.complete = true;  // the former picture serves
    return state;
  }

 private:
  struct Feed {
    Feed(Follower& owner, ReflectorOptions options)
        : store(
              owner.decode_, [&owner, this] { owner.arrived(this); }, options.max_bytes),
          reflector(owner.api_, std::move(options), store, owner.metrics_) {
      reflector.on_state([&owner] {
        if (owner.told_) owner.told_();
      });
    }
    Store<Record> store;
    Reflector reflector;
    io::CancelSource cancel;
  };

  static io::Task<void> run(Follower* self, std::shared_ptr<Feed> feed) {
    const io::CancelToken token = feed->cancel.token();
    co_await feed->reflector.run(token);
    --self->running_;
  }

  void arrived(Feed* feed) {
    std::shared_ptr<Feed> former;
    {
      const std::lock_guard lock(mutex_);
      if (next_ && next_.get() == feed) {
        former = std::exchange(current_, std::exchange(next_, nullptr));
      }
      if (!current_ || current_.get() != feed) return;
    }
    if (former) former->cancel.cancel();
    changed_();
  }

  ApiClient& api_;
  Metrics& metrics_;
  const typename Store<Record>::Decode decode_;
  const std::function<void()> changed_;
  const std::function<void()> told_;
  mutable std::mutex mutex_;  // which feeds there are
  std::shared_ptr<Feed> current_;
  std::shared_ptr<Feed> next_;
  size_t running_ = 0;  // tasks
};

}  // namespace penstock::kubernetes
