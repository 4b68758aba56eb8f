#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "director/access_log.h"
#include "director/director.h"
#include "protocol/response_reader.h"

namespace penstock::director {

// The answer's side of one request: reads it as it passes, restores model names, and when the request is
// over records everything once: metrics, decision log, access log, reservation. Reused like the Request it
// belongs to; same loop.
class Observer {
 public:
  // Before the decision. `access_log` may be nullptr: no line.
  void start(Pool& pool, Request& request, AccessLog* access_log, size_t loop);

  // What the data plane says of the endpoint it used (behind Envoy).
  struct Served {
    bool has_lb_metadata = false;
    std::optional<std::string_view> endpoint;
  };
  // The head of the answer that goes to the client. Failed attempts are not shown to the observer.
  void head(int status, std::string_view content_type, std::string_view content_encoding) {
    head(status, content_type, content_encoding, kNever, {});
  }
  void head(int status, std::string_view content_type, std::string_view content_encoding, TimePoint now,
            const Served& served);
  // After head(): the answer is a response that its endpoint stores, and who that is will be noted.
  bool learns_response() const { return learns_response_; }
  // Where learns_response(): another endpoint than the one picked made it; nullptr: nobody knows who.
  void made_by(std::shared_ptr<const Endpoint> endpoint) { maker_ = std::move(endpoint); }
  // After head(): what plugins want set in the answer's headers. Valid until end().
  void append_header_edits(std::vector<HeaderEdits::Edit>& out) const;
  // After body_end(): what plugins report to the data plane.
  struct Metadata {
    std::string ns;
    std::string name;
    double value = 0;
  };
  std::span<const Metadata> metadata() const { return metadata_; }
  // True when bytes may be changed or held back: the answer then has no content-length of its own.
  bool rewrites() const { return reads_ && reader_.rewrites(); }
  bool is_event_stream() const { return reads_ && reader_.is_event_stream(); }
  // An event stream in clear: an event of ours may be put at its end.
  bool takes_events() const { return takes_events_; }

  // The next piece of the body, and what to send of it: views into `piece` or into the reader, valid until
  // the next call.
  void piece(std::string_view piece, TimePoint now, std::vector<std::string_view>& out);
  // No more comes: what was held back. `natural`: the body is complete; false: it broke off.
  void body_end(std::vector<std::string_view>& out, bool natural = true);

  struct End {
    int status = 0;                // sent to the client, 0: none
    std::string_view reason;       // a literal
    const Error* error = nullptr;  // the gateway's own failure, nullptr: none
    uint32_t attempts = 0;
    uint64_t own_bytes = 0;  // of the body, made by the gateway itself
    WallTime wall;
  };
  // The request is over; the second call does nothing. Releases the reservation and counts everything.
  void end(const End& end, TimePoint now);

  uint64_t bytes_out() const { return bytes_out_; }

 private:
  class Collector;

  void count(const End& end, TimePoint now);
  void tell(ResponseEvent::Kind kind, TimePoint now, bool natural_end, const Served& served);
  void note_first_token(TimePoint now);
  void note_response(TimePoint now);

  Pool* pool_ = nullptr;
  Request* request_ = nullptr;
  AccessLog* access_log_ = nullptr;
  size_t loop_ = 0;
  protocol::ResponseReader reader_;
  bool reads_ = false;  // the answer goes through the reader
  int status_ = 0;
  bool takes_events_ = false;
  bool learns_response_ = false;  // until its id was seen
  std::shared_ptr<const Endpoint> maker_;
  uint64_t bytes_out_ = 0;
  TimePoint first_token_at_ = kNever;  // the first output of a stream, the first byte of other answers
  TimePoint last_piece_at_ = kNever;
  bool ended_ = true;
  bool hooks_ended_ = true;  // ResponseHooks were told of the end
  struct Header {
    std::string name;
    std::string value;
  };
  std::vector<Header> headers_;  // set by ResponseHooks
  std::vector<Metadata> metadata_;
};

}  // namespace penstock::director
