#pragma once

#include "base/clock.h"
#include "director/endpoint_health.h"

namespace penstock::director {

// What one request will say of the endpoints it was sent to: of its target, which answers, and, where it was
// split, of the prefill target, which a sidecar beside the decode engine talks to. Nobody but the sidecar
// sees the prefill engine, so what the answer says is divided:
//   output of an answer below 500                a success of the prefill target, whose work is done then
//   no connection, or one that broke             the target's: the sidecar is there
//   502 without a body                           the prefill target's: llm-d's sidecar says so that it could
//                                                not talk to it. Nobody's where an encoder takes part
//   any other 5xx, or a deadline before output   of whoever of the two has failed more often in a row, or is
//                                                on trial; of both where that is equal, unless it would eject
//                                                both: then the prefill target's, as the next answer, which
//                                                has another or none, tells about the target
//   a stall                                      of each that was silent for everybody, as HealthWatch finds
// Example: a prefill engine that answers 500 has after its second failure 2 in a row, and its three decode
// partners at most 1, which their next success clears: it alone is ejected.
// Lives on the loop of its HealthWatch.
class RequestHealth {
 public:
  // Bytes of the answer with output in them.
  void output(TimePoint now) {
    target_.output(now);
    if (prefill_.open()) prefilled(now);
  }
  // The answer came to its end, with a status that is no failure.
  void succeed(TimePoint now) {
    target_.succeed(now);
    prefill_.succeed(now);
  }
  void fail(FailureKind kind, TimePoint now);
  // An answer with a failure status; `empty`: it has no body.
  void fail_status(int status, bool empty, TimePoint now);
  // The request is over and says nothing; unless it waited too long.
  void drop(TimePoint now) {
    target_.drop(now);
    prefill_.drop(now);
  }
  void release() {
    target_.release();
    prefill_.release();
    encodes_ = false;
  }
  bool open() const { return target_.open() || prefill_.open(); }

  HealthTicket& target() { return target_; }
  HealthTicket& prefill() { return prefill_; }
  // An encoder takes part.
  void set_encodes() { encodes_ = true; }

 private:
  void prefilled(TimePoint now);

  HealthTicket target_;
  HealthTicket prefill_;
  bool encodes_ = false;
};

}  // namespace penstock::director
