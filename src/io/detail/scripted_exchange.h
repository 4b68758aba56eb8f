#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/http.h"
#include "io/loop.h"

namespace penstock::io::testing {

// A gRPC message as it goes over the wire.
inline std::string grpc_frame(std::string_view payload, char flag = 0) {
  std::string out(5, '\0');
  out[0] = flag;
  for (int i = 0; i < 4; ++i) out[1 + i] = static_cast<char>(payload.size() >> (24 - 8 * i));
  return out + std::string(payload);
}

// A client that says which bytes come in which piece, and keeps what it is told.
class ScriptedExchange final : public HttpExchange {
 public:
  explicit ScriptedExchange(Loop& loop) : loop_(loop), arrived_(loop) {
    fields_ = {{"content-type", "application/grpc"}, {"te", "trailers"}};
    head_.method = "POST";
    head_.target = head_.path = "/test.Echo/Say";
    head_.version = HttpVersion::kHttp2;
    head_.fields = HeaderFields(fields_);
  }

  void set_field(std::string_view name, std::string_view value) {
    std::erase_if(fields_, [&](const HeaderField& field) { return field.name == name; });
    fields_.push_back({name, value});
    head_.fields = HeaderFields(fields_);
  }
  RequestHead& head() { return head_; }
  void give(std::string piece) {
    pieces_.push_back(std::move(piece));
    arrived_.set();
  }
  void half_close() {
    half_closed_ = true;
    arrived_.set();
  }
  void go_away() {
    gone_ = true;
    arrived_.set();
    cancel_.cancel();
  }

  Loop& loop() override { return loop_; }
  const RequestHead& request() const override { return head_; }
  const ConnectionInfo& connection() const override { return info_; }
  CancelToken cancel_token() override { return cancel_.token(); }
  std::optional<uint64_t> content_length() const override { return std::nullopt; }
  Task<Result<BodyPiece>> read() override {
    for (;;) {
      if (gone_) co_return Error{ErrorCode::kClientClosed, "gone"};
      if (!pieces_.empty()) {
        // A piece of its own, so that the sanitizer sees views that are used for too long.
        piece_ = std::make_unique<std::string>(std::move(pieces_.front()));
        pieces_.pop_front();
        co_return BodyPiece{*piece_, pieces_.empty() && half_closed_};
      }
      if (half_closed_) {
        piece_.reset();
        co_return BodyPiece{{}, true};
      }
      arrived_.reset();
      (void)co_await arrived_.wait();
    }
  }
  Task<Result<std::span<char>>> read_all(size_t) override { co_return Error{ErrorCode::kInternal, "unused"}; }
  HeaderFields request_trailers() const override { return {}; }
  Task<Status> write_informational(int, std::span<const HeaderField>) override { co_return Status(); }
  Status write_head(int status, std::span<const HeaderField> fields, BodyFraming framing) override {
    EXPECT_EQ(status_, 0);
    status_ = status;
    framing_ = framing;
    for (const HeaderField& field : fields) head_fields_.emplace_back(field.name, field.value);
    return {};
  }
  bool head_written() const override { return status_ != 0; }
  Task<Status> flush() override { co_return Status(); }
  Task<Status> write(std::span<const std::string_view> pieces) override {
    ++writes_;
    for (std::string_view piece : pieces) body_ += piece;
    if (refuse_writes_) co_return Error{ErrorCode::kClientClosed, "gone"};
    co_return Status();
  }
  Task<Status> finish(std::span<const std::string_view> pieces,
                      std::span<const HeaderField> trailers) override {
    EXPECT_FALSE(finished_);
    for (std::string_view piece : pieces) body_ += piece;
    for (const HeaderField& field : trailers) trailers_.emplace_back(field.name, field.value);
    finished_ = true;
    co_return Status();
  }
  bool finished() const override { return finished_; }
  void abort() override { aborted_ = true; }
  void close_after() override {}

  std::string field(std::string_view name) const { return find(head_fields_, name); }
  std::string trailer(std::string_view name) const { return find(trailers_, name); }
  int status() const { return status_; }
  const std::string& body() const { return body_; }
  BodyFraming framing() const { return framing_; }
  int writes() const { return writes_; }
  bool aborted() const { return aborted_; }
  void refuse_writes() { refuse_writes_ = true; }
  size_t trailer_count() const { return trailers_.size(); }

 private:
  using Fields = std::vector<std::pair<std::string, std::string>>;
  static std::string find(const Fields& fields, std::string_view name) {
    for (const auto& [key, value] : fields)
      if (key == name) return value;
    return "(missing)";
  }

  Loop& loop_;
  Event arrived_;
  std::vector<HeaderField> fields_;
  RequestHead head_;
  ConnectionInfo info_;
  CancelSource cancel_;
  std::deque<std::string> pieces_;
  std::unique_ptr<std::string> piece_;
  bool half_closed_ = false;
  bool gone_ = false;
  bool refuse_writes_ = false;
  int status_ = 0;
  BodyFraming framing_;
  Fields head_fields_;
  Fields trailers_;
  std::string body_;
  int writes_ = 0;
  bool finished_ = false;
  bool aborted_ = false;
};

}  // namespace penstock::io::testing
