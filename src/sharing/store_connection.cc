#include "sharing/store_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/strings.h"
#include "config/files.h"

namespace penstock::sharing {

namespace {

constexpr size_t kMaxPassword = 4096;
constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kKeptBytes = 1 << 20;
constexpr size_t kShownBytes = 160;

struct Greeting {
  std::string commands;
  size_t replies = 0;
  bool authenticates = false;  // with the first command
};

Result<Greeting> greeting(const StoreOptions& options) {
  Greeting out;
  auto password = read_password(options);
  if (!password.ok()) return std::move(password).error();
  const std::string& user = options.user.empty() ? options.address.user : options.user;
  append_command(out.commands, {"TIME"});
  out.replies = 1;
  if (!password->empty()) {
    out.commands.clear();
    out.authenticates = true;
    if (user.empty()) {
      append_command(out.commands, {"AUTH", *password});
    } else {
      append_command(out.commands, {"AUTH", user, *password});
    }
    append_command(out.commands, {"TIME"});
    out.replies = 2;
  }
  if (options.address.database != 0) {
    append_command(out.commands, {"SELECT", std::to_string(options.address.database)});
    ++out.replies;
  }
  return out;
}

}  // namespace

Result<std::string> read_password(const StoreOptions& options) {
  if (!options.password_file.empty()) {
    auto text = config::read_file(options.password_file, kMaxPassword);
    if (!text.ok()) return Error{ErrorCode::kUnauthorized, "the password: " + text.error().message};
    return std::string(trim(*text));
  }
  return options.password.empty() ? options.address.password : options.password;
}

Error store_error(std::string_view reply) {
  struct Meaning {
    std::string_view prefix;
    ErrorCode code;
  };
  static constexpr std::array<Meaning, 12> kMeanings{{
      {"NOAUTH", ErrorCode::kUnauthorized},
      {"WRONGPASS", ErrorCode::kUnauthorized},
      {"NOPERM", ErrorCode::kUnauthorized},
      {"OOM", ErrorCode::kResourceExhausted},
      {"MISCONF", ErrorCode::kResourceExhausted},
      {"LOADING", ErrorCode::kServiceUnavailable},
      {"READONLY", ErrorCode::kServiceUnavailable},
      {"MASTERDOWN", ErrorCode::kServiceUnavailable},
      {"CLUSTERDOWN", ErrorCode::kServiceUnavailable},
      {"BUSY", ErrorCode::kServiceUnavailable},
      {"TRYAGAIN", ErrorCode::kServiceUnavailable},
      {"MOVED", ErrorCode::kServiceUnavailable},
  }};
  const std::string_view word = reply.substr(0, reply.find(' '));
  const auto found = std::find_if(kMeanings.begin(), kMeanings.end(),
                                  [&](const Meaning& meaning) { return meaning.prefix == word; });
  return {found == kMeanings.end() ? ErrorCode::kBadGateway : found->code,
          "the store answers: " + std::string(reply.substr(0, kShownBytes))};
}

io::Task<Result<std::unique_ptr<StoreConnection>>> StoreConnection::open(io::Loop& loop,
                                                                         const StoreOptions& options,
                                                                         io::CancelToken token) {
  auto hello = greeting(options);
  if (!hello.ok()) co_return std::move(hello).error();
  io::ConnectOptions connect;
  connect.timeout = options.timeout;
  connect.tls = options.address.tls ? options.tls : nullptr;
  connect.token = token;
  auto stream = co_await io::connect(loop, options.address.host, options.address.port, connect);
  if (!stream.ok()) co_return std::move(stream).error();
  std::unique_ptr<StoreConnection> made(new StoreConnection(loop, *std::move(stream)));
  auto replies = co_await made->exchange(hello->commands, hello->replies, options.timeout, token);
  if (!replies.ok()) co_return std::move(replies).error();
  for (const RespReply& reply : *replies) {
    if (reply.is_error()) {
      Error error = store_error(reply.text);
      // "ERR": it has no password, or its users no names.
      const bool of_password = hello->authenticates && &reply == replies->data();
      if (of_password && error.code == ErrorCode::kBadGateway) error.code = ErrorCode::kUnauthorized;
      co_return error;
    }
    if (reply.kind != RespReply::Kind::kArray) continue;
    if (Status status = made->take_time(reply); !status.ok()) co_return std::move(status).error();
  }
  if (made->clock_.store_us == 0) co_return Error{ErrorCode::kBadGateway, "the store doesn't tell its time"};
  co_return std::move(made);
}

io::Task<Result<std::span<const RespReply>>> StoreConnection::exchange(std::string_view commands,
                                                                       size_t replies, Duration timeout,
                                                                       io::CancelToken token) {
  const Error late{ErrorCode::kGatewayTimeout,
                   fmt::format("the store did not answer within {} ms", timeout.count() / 1'000'000)};
  asked_ = loop_.now();
  const TimePoint deadline = asked_ + timeout;
  const io::IoOptions write_options(timeout, token);
  Status written = co_await stream_.write(commands, write_options);
  if (!written.ok()) {
    co_return written.error().code == ErrorCode::kRequestTimeout ? late : std::move(written).error();
  }
  sent_ += commands.size();

  if (buffer_.size() > kKeptBytes) std::string(kReadBytes, '\0').swap(buffer_);
  size_t filled = 0;
  // Replies are parsed as they come; views of earlier ones move with the buffer, so all are parsed once more
  // when the last one is there.
  std::vector<size_t> ends;
  size_t least = 1;
  RespReply reply;
  while (ends.size() < replies) {
    const size_t begin = ends.empty() ? 0 : ends.back();
    if (filled - begin >= least) {
      const RespParsed parsed = parse_reply(std::string_view(buffer_).substr(begin, filled - begin), reply);
      if (parsed.outcome == RespOutcome::kMalformed) {
        co_return Error{ErrorCode::kBadGateway, "what the store sends is not RESP"};
      }
      if (parsed.outcome == RespOutcome::kTooLarge) {
        co_return Error{ErrorCode::kPayloadTooLarge, "a reply of the store is beyond the limits"};
      }
      if (parsed.outcome == RespOutcome::kComplete) {
        ends.push_back(begin + parsed.bytes);
        least = 1;
        continue;
      }
      least = parsed.bytes;
    }
    const size_t room = std::max(begin + least, filled + kReadBytes);
    if (buffer_.size() < room) buffer_.resize(room);
    const Duration left = deadline - loop_.now();
    if (left <= Duration::zero()) co_return late;
    const io::IoOptions read_options(left, token);
    const std::span<char> into(buffer_.data() + filled, buffer_.size() - filled);
    Result<size_t> got = co_await stream_.read(into, read_options);
    if (!got.ok()) co_return got.error().code == ErrorCode::kRequestTimeout ? late : std::move(got).error();
    if (*got == 0) co_return Error{ErrorCode::kIo, "the store has closed the connection"};
    filled += *got;
    received_ += *got;
  }
  answered_ = loop_.now();
  if (ends.back() != filled)
    co_return Error{ErrorCode::kBadGateway, "the store sends more than it was asked"};
  replies_.assign(replies, RespReply());
  size_t begin = 0;
  for (size_t i = 0; i < replies; ++i) {
    (void)parse_reply(std::string_view(buffer_).substr(begin, ends[i] - begin), replies_[i]);
    begin = ends[i];
  }
  co_return std::span<const RespReply>(replies_);
}

Status StoreConnection::take_time(const RespReply& reply) {
  if (reply.is_error()) return store_error(reply.text);
  if (reply.kind == RespReply::Kind::kArray && reply.items.size() == 2) {
    const auto seconds = parse_u64(reply.items[0].text);
    const auto micros = parse_u64(reply.items[1].text);
    if (seconds && micros && *seconds < uint64_t{1} << 40 && *micros < 1'000'000) {
      clock_ = {*seconds * 1'000'000 + *micros, asked_, answered_};
      return {};
    }
  }
  return Error{ErrorCode::kBadGateway, "the store doesn't tell its time"};
}

}  // namespace penstock::sharing
