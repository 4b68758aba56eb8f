#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "director/body_budget.h"
#include "extproc/answers.h"
#include "extproc/core.h"
#include "extproc/wire.h"
#include "io/grpc.h"

namespace penstock::extproc {

// The state machine of one Process stream, without its socket: messages in, answers out. Lives on one loop.
//
// Request side, by the request body mode of the first message's protocol_config (absent: full duplex):
//   FULL_DUPLEX_STREAMED  collects; at the end (end_of_stream or trailers) decides and answers headers, body
//                         pieces, and trailers if they came
//   STREAMED              when told that bodies don't wait for the header answer: as above, but each chunk
//   has
//                         its one answer. Otherwise Envoy shows no body before the header answer: decided on
//                         the headers alone, chunks pass
//   BUFFERED, …_PARTIAL   headers pass; decides on the one body message and answers with headers and body
//   NONE                  decided on the headers alone
// Headers with end_of_stream are decided at once, in every mode. Response side: headers, chunks and trailers
// are answered as they come; the answer is complete with its end_of_stream or trailers.
class Processor {
 public:
  enum class Next : uint8_t {
    kRead,   // send what is there, read on
    kAsk,    // wait for request()'s questions, nothing else, then go on with resume()
    kClose,  // send what is there and end the stream with OK
    kFail,   // end the stream with failure()
  };

  explicit Processor(PoolPart& pool);
  ~Processor();
  Processor(const Processor&) = delete;
  Processor& operator=(const Processor&) = delete;

  // `answers` is empty before. Its pieces, and `message`, must stay valid until sent(). `with_last`: it came
  // together with the message before, so at the same time.
  Next message(std::string_view message, Answers& answers, bool with_last = false);
  // What was asked for the decision is answered. REQUIRES: the last call gave kAsk; `answers` is that call's.
  Next resume(Answers& answers);
  const director::Request& request() const { return watching_->request; }
  // How long the next message may take, zero: as long as it likes. Until the request is complete that is
  // DoorOptions::body_timeout, or less where body_total_timeout ends earlier.
  Duration patience() const;
  // No message came within patience().
  Next overdue(Answers& answers);
  // The answers of the last call have left, or never will.
  void sent();
  // The stream is over: half-closed or reset, which says nothing about the request.
  void ended();
  // The stream broke with `error`: kClientClosed and kCancelled are as above; kIo: its connection was lost;
  // the rest is the data plane's breach or a limit of ours.
  void ended(const Error& error);

  // The request is not complete, so its data plane owes us messages.
  bool waits_for_request() const {
    return request_ != RequestPhase::kDecided && response_ == ResponsePhase::kNone;
  }
  const io::GrpcStatus& failure() const { return failure_; }

 private:
  enum class RequestPhase : uint8_t { kNone, kBody, kDecided };
  enum class ResponsePhase : uint8_t { kNone, kBody, kDone };

  Next fail(io::GrpcCode code, std::string_view message);
  bool read_modes(const std::optional<ProtocolConfig>& config, std::string& problem);
  Next request_headers(const Incoming& in, Answers& answers);
  Next request_body(const Incoming& in, Answers& answers);
  Next request_trailers(const Incoming& in, Answers& answers);
  Next response_headers(const Incoming& in, std::string_view message, Answers& answers);
  Next response_body(const Incoming& in, Answers& answers);
  Next response_trailers(Answers& answers);

  void read_fields();
  void note_subset(std::string_view metadata);
  director::RequestInput input() const;
  // `whole_body`: what was collected is the body; otherwise nothing of it is known.
  Next decide(Answers& answers, bool whole_body);
  void answer_choice(Answers& answers, bool whole_body);
  void header_changes(bool whole_body);
  Next refuse(const Error& error, std::string_view reason, Answers& answers,
              FallbackState state = FallbackState::kNone);
  std::optional<Duration> time_left() const;
  Next answer_refusal(const Error& error, std::string_view reason, Answers& answers);
  // Everything of the request was answered: stay or leave.
  Next after_request();
  // The response is complete; its accounts are closed once its last bytes have left.
  Next response_ends();
  bool leaves() const;
  bool is_local_reply(std::string_view message, int status, bool whole) const;
  director::Observer::Served served(const Incoming& in) const;
  // Of the pool as it is now; nullptr: it has none there.
  std::shared_ptr<const Endpoint> endpoint_at(std::string_view host_port) const;
  // What plugins tell the data plane at the end of the answer.
  void add_metadata(Answers& answers);
  // Closes the accounts; once.
  void end(int status, std::string_view reason, const Error* error, uint64_t own_bytes = 0);
  void release_deciding();

  PoolPart& pool_;
  LoopPart& part_;
  Core& core_;
  std::unique_ptr<LoopPart::Watching> watching_;
  std::unique_ptr<Deciding> deciding_;  // until the request's answers have left
  director::BodyShare share_;
  TimePoint arrived_at_ = kNever;
  TimePoint now_ = kNever;
  io::GrpcStatus failure_;
  std::string_view request_id_;
  std::string_view method_;
  std::string_view path_;
  uint64_t promised_ = 0;  // content-length
  uint32_t chunks_ = 0;    // body messages that wait for their answer
  int status_ = 0;         // of the response
  RequestPhase request_ = RequestPhase::kNone;
  ResponsePhase response_ = ResponsePhase::kNone;
  BodyMode request_mode_ = BodyMode::kFullDuplexStreamed;
  BodyMode response_mode_ = BodyMode::kFullDuplexStreamed;
  bool body_before_answer_ = false;  // STREAMED: bodies don't wait for the header answer
  bool modes_known_ = false;
  bool has_request_ = false;  // request headers came: there is something to account for
  bool body_ended_ = false;   // the last request body message came
  bool trailers_ = false;     // the request ended with trailers
  bool subset_given_ = false;
  bool made_id_ = false;
  bool settled_ = false;
  bool observed_ = false;  // the observer reads the response
  bool restores_ = false;  // and may change it
  bool local_reply_ = false;
  bool asked_ = false;
  bool asked_whole_ = false;  // with the whole body
  bool ended_ = false;
};

}  // namespace penstock::extproc
