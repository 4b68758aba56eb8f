#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "io/loop.h"
#include "io/net.h"
#include "io/tls.h"
#include "sharing/resp.h"
#include "sharing/store_address.h"

namespace penstock::sharing {

// Two readings of the local clock around one of the store's, without which ages of records that other
// machines wrote could not be told: at a local time t after `answered` the store's clock shows between
// earliest(t) and latest(t).
struct StoreClock {
  uint64_t store_us = 0;
  TimePoint asked = kNever;
  TimePoint answered = kNever;

  uint64_t earliest(TimePoint t) const { return store_us + micros(t - answered); }
  uint64_t latest(TimePoint t) const { return store_us + micros(t - asked); }

 private:
  static uint64_t micros(Duration d) { return d.count() <= 0 ? 0 : static_cast<uint64_t>(d.count() / 1000); }
};

struct StoreOptions {
  StoreAddress address;                       // its user and password are used where those below are empty
  std::string user;                           // "" with a password: the default user
  std::string password;                       // of the environment, say
  std::string password_file;                  // read with every connection; goes first
  std::shared_ptr<io::TlsClientContext> tls;  // for rediss://
  Duration timeout = std::chrono::seconds(1);
};

// What a connection authenticates with; "": it doesn't. The file where there is one, for passwords that are
// renewed while the process runs. kUnauthorized when it can't be read.
Result<std::string> read_password(const StoreOptions& options);

// What an error reply means for who gets it: kUnauthorized (NOAUTH, WRONGPASS, NOPERM), kResourceExhausted
// (OOM, MISCONF: the store takes no writes but can be read), kServiceUnavailable (LOADING, READONLY,
// MASTERDOWN, CLUSTERDOWN, BUSY, TRYAGAIN, MOVED), kBadGateway for all others.
Error store_error(std::string_view reply);

// One connection to Redis or Valkey, for pipelines of commands. One loop's; one exchange at a time. After an
// error it is of no more use.
class StoreConnection {
 public:
  // Connects, authenticates, selects the database and asks for the store's time. kUnauthorized also when the
  // password file can't be read or the store takes no password.
  static io::Task<Result<std::unique_ptr<StoreConnection>>> open(io::Loop& loop, const StoreOptions& options,
                                                                 io::CancelToken token);

  // Sends `commands` and reads as many replies, errors among them. The replies are valid until the next
  // exchange. kGatewayTimeout when not all of it is done within `timeout`, kBadGateway for what is no RESP,
  // kPayloadTooLarge for a reply beyond the limits.
  io::Task<Result<std::span<const RespReply>>> exchange(std::string_view commands, size_t replies,
                                                        Duration timeout, io::CancelToken token);
  // Takes the reply to TIME, which was the first of the last exchange.
  Status take_time(const RespReply& reply);
  const StoreClock& clock() const { return clock_; }

  uint64_t bytes_sent() const { return sent_; }
  uint64_t bytes_received() const { return received_; }

 private:
  StoreConnection(io::Loop& loop, io::Stream stream) : loop_(loop), stream_(std::move(stream)) {}

  io::Loop& loop_;
  io::Stream stream_;
  std::string buffer_;  // received; its size is its room
  std::vector<RespReply> replies_;
  StoreClock clock_;
  TimePoint asked_ = kNever;
  TimePoint answered_ = kNever;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
};

}  // namespace penstock::sharing
