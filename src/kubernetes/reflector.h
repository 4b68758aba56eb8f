#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/random.h"
#include "io/loop.h"
#include "kubernetes/api_client.h"
#include "kubernetes/metrics.h"
#include "kubernetes/store.h"

namespace penstock::kubernetes {

struct ReflectorOptions {
  Resource resource;
  std::string ns;  // "": all namespaces
  std::string label_selector;
  std::string field_selector;

  Duration retry_base = std::chrono::milliseconds(500);
  Duration retry_cap = std::chrono::seconds(15);      // while nobody answers: how late a return is noticed
  Duration refused_cap = std::chrono::seconds(60);    // while we may not, or the resource isn't there
  Duration server_timeout = std::chrono::minutes(5);  // of a watch, and up to as much again
  Duration silence = std::chrono::seconds(130);
  // Longest silence in a streaming list: an old server doesn't know it, and says nothing of its end.
  Duration initial_silence = std::chrono::seconds(20);
  Duration healthy_after = std::chrono::seconds(10);  // a watch that lived so long was a good one
  // A watch that was accepted may still be refused by its first event; then it is not, however quiet.
  Duration steady_after = std::chrono::seconds(1);
  int64_t page_size = 250;  // of lists, where the server has no streaming ones
  // Of what the sink keeps; more objects are left out, with a line in the log, and count as unreadable. All
  // are read again once there is room.
  size_t max_objects = 100'000;
  size_t max_bytes = SIZE_MAX;  // where records say their bytes; the sink refuses what is more
  bool streaming = true;
  // What the watch told is compared with the server's own list (metadata only) again and again, since a proxy
  // or a bug may lose an event. Zero: never.
  Duration check_interval = std::chrono::minutes(10);
  Duration check_grace = std::chrono::seconds(5);
  uint64_t seed = 1;  // of jitter
};

// What one resource's picture is like. Any thread.
struct ReflectorState {
  bool complete = false;  // a whole list was seen once
  bool watching = false;  // a watch runs, its picture is complete
  bool absent = false;    // the server has no such resource
  bool full = false;      // objects were left out for a limit
  size_t objects = 0;
  size_t bytes = 0;               // of their records, where those say so
  TimePoint heard_at = kNever;    // the server's last sign of life
  TimePoint trouble_at = kNever;  // since when it doesn't work; kNever: it does
  Reason reason = Reason::kNone;  // why not
  std::string message;
};

// Keeps a sink in step with one resource of an API server: reads all objects (a streaming list where the
// server has them, pages where not), then watches, for as long as run() runs. What the sink holds is never
// cleared because the server is away, refuses us, or forgets how to speak: it gets older, and state() and
// metrics say so. Waits between attempts grow with full jitter, so that a server that answers every watch
// with 410 is asked a few times a minute. Lives on the client's loop; state() is for any thread.
class Reflector final : private WatchListener {
 public:
  // All outlive it.
  Reflector(ApiClient& api, ReflectorOptions options, ObjectSink& sink, Metrics& metrics);

  // Until the token fires. REQUIRES: once.
  io::Task<void> run(io::CancelToken token);
  ReflectorState state() const;
  const ReflectorOptions& options() const { return options_; }
  // Called on the loop whenever state() changes in more than its times.
  void on_state(std::function<void()> changed) { state_changed_ = std::move(changed); }

 private:
  bool on_event(const WatchEvent& event) override;
  void on_batch_end() override;
  void on_heard() override;

  io::Task<Failure> watch(io::CancelToken token);
  io::Task<Failure> list(io::CancelToken token);
  io::Task<Failure> list_from(std::string continue_token, io::CancelToken token);
  Failure take_page(const std::string& body, std::string& next, std::string& version);
  void put(Json object);
  // Of a full sink, whether there is room again.
  bool has_room() const;
  void count_objects();  // under mutex_
  void begin_replace();
  void synced(std::string_view version);
  Duration after(const Failure& end);
  void troubled(const Failure& failure);
  void recovered();
  io::Task<void> check(io::CancelToken token);
  // Keys of objects that the server has in another version than the sink, or that only one of them has.
  io::Task<std::optional<std::vector<std::string>>> differences(io::CancelToken token);
  void relist(std::string_view why);
  static void initial_silence(void* self);
  static void steady(void* self);

  ApiClient& api_;
  const ReflectorOptions options_;
  ObjectSink& sink_;
  Metrics& metrics_;
  const std::string_view label_;
  SystemClock clock_;
  Backoff backoff_;
  Random random_;
  JsonDocument page_;
  io::Timer initial_timer_;
  io::Timer steady_timer_;
  io::CancelSource attempt_;  // of the running watch
  std::string version_;       // to watch from; "": everything has to be read first
  bool streaming_;
  bool initial_ = false;           // the running watch still tells what there was
  TimePoint good_since_ = kNever;  // the running attempt: when its watch had told a whole picture
  bool was_away_ = false;          // the last attempt's server
  TimePoint back_at_ = kNever;     // when one was there again after it had been away
  bool no_streaming_ = false;      // the server doesn't know streaming lists
  bool full_ = false;              // something of this picture was left out
  std::string unreadable_;         // the last object's error, so that it is told once
  std::function<void()> state_changed_;

  mutable std::mutex mutex_;
  ReflectorState state_;
};

}  // namespace penstock::kubernetes
