#include "extproc/processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/strings.h"
#include "director/fields.h"
#include "director/tracing.h"
#include "protocol/errors.h"
#include "telemetry/log.h"

namespace penstock::extproc {

namespace {

using Side = Answers::Side;

constexpr std::string_view kDestination = "x-gateway-destination-endpoint";
// Routes of a gateway may match it, and they are matched again after our answer.
constexpr std::string_view kRouteModel = "x-gateway-model-name";
constexpr std::string_view kDefaultPath = "/v1/completions";
constexpr std::string_view kLeft = "left_response_phase";  // why a request's account was closed
constexpr std::string_view kJson = "application/json";
// Of a body in STREAMED mode; Envoy's buffer takes 1 MiB by default.
constexpr size_t kUnansweredBytes = 512 << 10;
// Of a body, taken at its first chunk because content-length says that it will be needed: this much, or so
// many times what has come.
constexpr size_t kPromisedBytes = 64 << 10;
constexpr size_t kPromisedFactor = 4;

// Fields that describe the body as it was before a name was restored in it.
constexpr std::array<std::string_view, 7> kBodyFields{
    "content-length", "content-md5", "digest", "content-digest", "repr-digest", "etag", "accept-ranges"};

std::string_view decimal(uint64_t value, std::span<char> out) {
  const auto end = std::to_chars(out.data(), out.data() + out.size(), value);
  return {out.data(), static_cast<size_t>(end.ptr - out.data())};
}

// What plugins want changed. A value that a data plane would refuse, copied from a client perhaps, is left
// out.
void apply_edits(std::span<const HeaderEdits::Edit> edits, std::vector<HeaderField>& set,
                 std::vector<std::string_view>& remove) {
  for (const HeaderEdits::Edit& edit : edits) {
    std::erase(remove, edit.name);
    std::erase_if(set, [&](const HeaderField& field) { return field.name == edit.name; });
    if (edit.remove) {
      remove.push_back(edit.name);
    } else if (std::none_of(edit.value.begin(), edit.value.end(),
                            [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; })) {
      set.push_back({edit.name, edit.value});
    }
  }
}

bool has_upper(std::string_view name) {
  // A byte that is ASCII, 'A' or more, and not more than 'Z'; eight at once.
  const auto any = [](uint64_t bytes) {
    const uint64_t low = bytes & 0x7F7F7F7F7F7F7F7FULL;
    const uint64_t from_a = low + 0x3F3F3F3F3F3F3F3FULL;
    const uint64_t past_z = low + 0x2525252525252525ULL;
    return (from_a & ~past_z & ~bytes & 0x8080808080808080ULL) != 0;
  };
  uint64_t bytes = 0;
  for (; name.size() >= sizeof(bytes); name.remove_prefix(sizeof(bytes))) {
    std::memcpy(&bytes, name.data(), sizeof(bytes));
    if (any(bytes)) return true;
  }
  bytes = 0;
  if (!name.empty()) std::memcpy(&bytes, name.data(), name.size());
  return any(bytes);
}

int status_of(std::string_view text) {
  int status = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), status);
  return end.ec == std::errc() && end.ptr == text.data() + text.size() && status >= 100 && status <= 999
             ? status
             : 0;
}

}  // namespace

Processor::Processor(PoolPart& pool)
    : pool_(pool),
      part_(pool.part),
      core_(part_.core),
      watching_(part_.watching.take()),
      share_(core_.bodies) {}

Processor::~Processor() {
  sent();
  ended();
  watching_->request.reset();
  release_deciding();
  part_.watching.give_back(std::move(watching_));
}

void Processor::release_deciding() {
  if (deciding_ == nullptr) return;
  if (!settled_) watching_->request.arena.swap(deciding_->arena);
  part_.give_back(std::move(deciding_));
  core_.undecided.fetch_sub(1, std::memory_order_relaxed);
  share_.release();
}

void Processor::sent() {
  if (response_ == ResponsePhase::kDone) end(status_, local_reply_ ? "envoy_reply" : "ok", nullptr);
  if (request_ != RequestPhase::kDecided || settled_) return;
  settled_ = true;
  watching_->request.settle(deciding_->arena);
  release_deciding();
}

void Processor::ended() {
  if (!has_request_ || ended_) return;
  now_ = core_.clock.now();
  std::string_view reason = "client_disconnect";
  int status = response_ == ResponsePhase::kNone ? 499 : status_;
  if (core_.stopping.load(std::memory_order_relaxed)) {
    reason = "shutdown";
  } else if (request_ == RequestPhase::kDecided && response_mode_ == BodyMode::kNone) {
    // No body of the answer is shown, perhaps not even its headers: the stream's end is all there is.
    reason = response_ == ResponsePhase::kNone ? "unobserved" : local_reply_ ? "envoy_reply" : "ok";
    if (response_ == ResponsePhase::kNone) {
      status = 0;
      pool_.credits.add(std::move(watching_->request.load));
    }
  }
  if (request_ != RequestPhase::kDecided) {
    pool_.director.refuse(watching_->request, input(),
                          Error{ErrorCode::kClientClosed, "the stream ended before the request did"});
  }
  end(status, reason, nullptr);
}

void Processor::ended(const Error& error) {
  if (error.code == ErrorCode::kClientClosed || error.code == ErrorCode::kCancelled) return ended();
  if (core_.stopping.load(std::memory_order_relaxed)) return ended();
  if (!has_request_ || ended_) return;
  now_ = core_.clock.now();
  std::string_view reason = "protocol_error";
  if (error.code == ErrorCode::kPayloadTooLarge) reason = "limit_message";
  if (error.code == ErrorCode::kRequestTimeout) reason = "deadline";
  if (error.code == ErrorCode::kIo) reason = "connection_lost";
  if (request_ != RequestPhase::kDecided) pool_.director.refuse(watching_->request, input(), error);
  end(status_, reason, &error);
}

void Processor::end(int status, std::string_view reason, const Error* error, uint64_t own_bytes) {
  if (!has_request_ || ended_) return;
  ended_ = true;
  core_.active.fetch_sub(1, std::memory_order_relaxed);
  DoorMetrics& metrics = core_.metrics;
  (reason == "ok"    ? metrics.ends_ok
   : reason == kLeft ? metrics.ends_left
                     : metrics.ends.with({reason}))
      .add();
  director::Observer::End how;
  how.status = status;
  how.reason = reason;
  how.error = error;
  how.attempts = request_ == RequestPhase::kDecided ? 1 : 0;
  how.own_bytes = own_bytes;
  if (core_.access_log != nullptr) how.wall = part_.wall.at(now_);
  watching_->observer.end(how, now_);
}

Processor::Next Processor::fail(io::GrpcCode code, std::string_view message) {
  failure_ = io::GrpcStatus(code, std::string(message));
  const Error error{ErrorCode::kBadRequest, std::string(message)};
  if (has_request_ && request_ != RequestPhase::kDecided) {
    pool_.director.refuse(watching_->request, input(), error);
  }
  end(0, "protocol_error", &error);
  telemetry::log_debug("a Process stream breaks the protocol", {{"error", message}});
  return Next::kFail;
}

bool Processor::read_modes(const std::optional<ProtocolConfig>& config, std::string& problem) {
  modes_known_ = true;
  if (config) {
    if (config->request_body_mode >= kBodyModes || config->response_body_mode >= kBodyModes) {
      problem = "protocol_config names a body mode that this picker doesn't know (" +
                std::to_string(config->request_body_mode) + ", " +
                std::to_string(config->response_body_mode) + ")";
      return false;
    }
    request_mode_ = static_cast<BodyMode>(config->request_body_mode);
    response_mode_ = static_cast<BodyMode>(config->response_body_mode);
    body_before_answer_ = config->send_body_without_waiting;
  }
  core_.metrics.streams[static_cast<size_t>(request_mode_)]->add();
  return true;
}

Processor::Next Processor::message(std::string_view message, Answers& answers, bool with_last) {
  if (!with_last || now_ == kNever) now_ = core_.clock.now();
  Incoming in;
  if (!decode(message, in)) {
    return fail(io::GrpcCode::kInvalidArgument, "a message is no valid ProcessingRequest");
  }
  if (!modes_known_) {
    if (in.observability_mode) {
      return fail(io::GrpcCode::kFailedPrecondition,
                  "observability_mode: nothing can be picked where answers are ignored");
    }
    std::string problem;
    if (!read_modes(in.protocol_config, problem)) return fail(io::GrpcCode::kUnimplemented, problem);
  }
  switch (in.part) {
    case Part::kNothing:
      return Next::kRead;
    case Part::kRequestHeaders:
      return request_headers(in, answers);
    case Part::kRequestBody:
      return request_body(in, answers);
    case Part::kRequestTrailers:
      return request_trailers(in, answers);
    case Part::kResponseHeaders:
      return response_headers(in, message, answers);
    case Part::kResponseBody:
      return response_body(in, answers);
    case Part::kResponseTrailers:
      return response_trailers(answers);
  }
  return Next::kRead;
}

// --- the request ---

Processor::Next Processor::request_headers(const Incoming& in, Answers& answers) {
  if (request_ != RequestPhase::kNone || response_ != ResponsePhase::kNone) {
    return fail(io::GrpcCode::kInvalidArgument, "request headers came after other messages");
  }
  arrived_at_ = now_;
  has_request_ = true;
  core_.active.fetch_add(1, std::memory_order_relaxed);
  request_ = RequestPhase::kBody;
  deciding_ = part_.take_deciding();
  core_.undecided.fetch_add(1, std::memory_order_relaxed);
  Deciding& d = *deciding_;
  d.fields.clear();
  d.body.clear();
  d.subset.clear();
  d.subset_text.clear();
  watching_->request.arena.swap(d.arena);
  watching_->observer.start(pool_.pool, watching_->request, core_.access_log, part_.index);
  const bool too_large = in.content.size() > static_cast<size_t>(core_.options.header_bytes);
  d.header_bytes.assign(too_large ? std::string_view() : in.content);
  bool end_of_stream = false;
  if (!decode_headers(d.header_bytes, d.fields, end_of_stream)) {
    return fail(io::GrpcCode::kInvalidArgument, "request headers are no valid HttpHeaders");
  }
  read_fields();
  director::begin_trace(core_.options.tracer, watching_->request, d.fields);
  note_subset(in.metadata);
  if (too_large) {
    return refuse(Error{ErrorCode::kHeadersTooLarge,
                        "the request's headers have " + std::to_string(in.content.size()) +
                            " bytes, the limit is " + std::to_string(core_.options.header_bytes)},
                  "limit_headers", answers);
  }
  if (core_.open.load(std::memory_order_relaxed) > core_.options.streams) {
    return refuse(Error{ErrorCode::kServiceUnavailable,
                        "the picker serves as many streams as its limit allows (streams)"},
                  "limit_streams", answers);
  }
  if (end_of_stream) {
    body_ended_ = true;
    return decide(answers, false);
  }
  switch (request_mode_) {
    case BodyMode::kNone:
      core_.metrics.unparsed_mode.add();
      return decide(answers, false);
    case BodyMode::kStreamed:
      if (body_before_answer_) return Next::kRead;
      core_.metrics.unparsed_mode.add();
      return decide(answers, false);
    case BodyMode::kBuffered:
    case BodyMode::kBufferedPartial:
      answers.headers(Side::kRequest);
      return Next::kRead;
    case BodyMode::kFullDuplexStreamed:
      return Next::kRead;
  }
  return Next::kRead;
}

// Lower-case names, the id, method, path and declared length.
void Processor::read_fields() {
  Deciding& d = *deciding_;
  std::string_view id;
  std::string_view original;
  std::string_view forwarded;
  std::optional<uint64_t> length;
  method_ = {};
  path_ = {};
  for (HeaderField& field : d.fields) {
    if (has_upper(field.name)) {
      // The name is part of our own copy.
      char* name = d.header_bytes.data() + (field.name.data() - d.header_bytes.data());
      std::transform(name, name + field.name.size(), name, [](char c) { return ascii_lower(c); });
    }
    switch (field.name.size()) {
      case 5:
        if (field.name == ":path") path_ = field.value;
        break;
      case 7:
        if (field.name == ":method") method_ = field.value;
        break;
      case 12:
        if (field.name == "x-request-id" && id.empty()) id = field.value;
        break;
      case 14:
        if (field.name == "content-length") length = parse_u64(field.value);
        break;
      case 15:
        if (field.name == "x-original-path") original = field.value;
        break;
      case 16:
        if (field.name == "x-forwarded-path") forwarded = field.value;
        break;
      default:
        break;
    }
  }
  if (path_.empty()) path_ = original;
  if (path_.empty()) path_ = forwarded;
  // Headers above the limit are not read at all.
  if (path_.empty() && !d.fields.empty()) path_ = kDefaultPath;
  path_ = path_.substr(0, path_.find('?'));
  request_id_ = core_.options.trust_request_id ? director::usable_request_id(id) : std::string_view();
  made_id_ = request_id_.empty();
  if (made_id_) {
    director::make_request_id(part_.random, d.made_id);
    request_id_ = {d.made_id.data(), d.made_id.size()};
  }
  promised_ = length.value_or(0);
}

// The subset of the latest message that has one: a list, or a text with commas.
void Processor::note_subset(std::string_view metadata) {
  if (metadata.empty() || !core_.options.subset_filter) return;
  const auto value = find_metadata(metadata, "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset");
  if (!value) return;
  Deciding& d = *deciding_;
  std::string text;
  const auto add = [&text](std::string_view entry) {
    text += entry;
    text += ',';
  };
  if (!each_text(*value, add)) {
    const auto list = value_text(*value);
    if (!list) return;
    if (!trim(*list).empty()) add(*list);
  }
  subset_given_ = true;
  d.subset_text = std::move(text);
  d.subset.clear();
  for (const std::string_view entry : split(d.subset_text, ',')) {
    // One more than the director takes.
    if (d.subset.size() > director::kMaxSubsetEntries) break;
    if (!trim(entry).empty()) d.subset.push_back(director::parse_subset_entry(entry));
  }
}

Processor::Next Processor::request_body(const Incoming& in, Answers& answers) {
  std::string_view bytes;
  bool end_of_stream = false;
  if (!decode_body(in.content, bytes, end_of_stream)) {
    return fail(io::GrpcCode::kInvalidArgument, "a request body is no valid HttpBody");
  }
  if (request_ == RequestPhase::kNone) {
    return fail(io::GrpcCode::kInvalidArgument, "a request body came before its headers");
  }
  if (body_ended_) {
    return fail(io::GrpcCode::kInvalidArgument, "a request body came after its end");
  }
  if (request_ == RequestPhase::kDecided) {
    // Decided on the headers: the chunks pass.
    if (request_mode_ != BodyMode::kStreamed) {
      return fail(io::GrpcCode::kInvalidArgument, "a request body came after the decision");
    }
    body_ended_ = end_of_stream;
    answers.body(Side::kRequest);
    return end_of_stream ? after_request() : Next::kRead;
  }
  if (response_ != ResponsePhase::kNone) return Next::kRead;  // the data plane has answered itself
  // A body that drips without a pause is never waited for.
  if (!end_of_stream && time_left().value_or(Duration(1)) <= Duration::zero()) return overdue(answers);
  note_subset(in.metadata);
  Deciding& d = *deciding_;
  const size_t size = d.body.size() + bytes.size();
  if (size > static_cast<size_t>(core_.options.body_bytes)) {
    return refuse(Error{ErrorCode::kPayloadTooLarge, "the request body has more than " +
                                                         std::to_string(core_.options.body_bytes) +
                                                         " bytes, which is the limit (limits.bodyBytes)"},
                  "limit_body", answers);
  }
  if (!share_.resize(static_cast<int64_t>(size))) {
    return refuse(Error{ErrorCode::kServiceUnavailable,
                        "the picker holds as many bytes of request bodies as its limit allows (" +
                            std::to_string(core_.bodies.limit()) + ", bufferedBytes)"},
                  "limit_buffered", answers);
  }
  // A promise: memory for more than a little is taken as it comes.
  if (chunks_ == 0 && !end_of_stream) {
    d.body.reserve(std::min<size_t>(promised_, std::max(kPromisedBytes, kPromisedFactor * size)));
  }
  d.body.append(bytes);
  body_ended_ = end_of_stream;
  ++chunks_;
  // A buffered body comes in one message, whatever its end_of_stream says: trailers may follow.
  const bool buffered = request_mode_ == BodyMode::kBuffered || request_mode_ == BodyMode::kBufferedPartial;
  if (!end_of_stream && request_mode_ == BodyMode::kStreamed && size > kUnansweredBytes) {
    // The data plane keeps each chunk until it is answered, and stops at its buffer's limit.
    core_.metrics.unparsed_partial.add();
    return decide(answers, false);
  }
  if (!end_of_stream && !buffered) return Next::kRead;
  return decide(answers, true);
}

Processor::Next Processor::request_trailers(const Incoming& in, Answers& answers) {
  if (request_ == RequestPhase::kNone) {
    return fail(io::GrpcCode::kInvalidArgument, "request trailers came before the headers");
  }
  if (trailers_) return fail(io::GrpcCode::kInvalidArgument, "request trailers came twice");
  trailers_ = true;
  if (request_ == RequestPhase::kBody) {
    if (response_ != ResponsePhase::kNone) return Next::kRead;
    note_subset(in.metadata);
    if (request_mode_ != BodyMode::kFullDuplexStreamed && request_mode_ != BodyMode::kStreamed) {
      return refuse(Error{ErrorCode::kBadRequest, "the request has trailers but no body"}, "rejected",
                    answers);
    }
    return decide(answers, true);
  }
  body_ended_ = true;
  answers.trailers(Side::kRequest);
  return after_request();
}

director::RequestInput Processor::input() const {
  director::RequestInput input;
  input.request_id = request_id_;
  input.method = method_;
  input.path = path_;
  input.headers = deciding_->fields;
  input.received_at = arrived_at_;
  input.now = now_;
  if (subset_given_) input.subset = deciding_->subset;
  input.shows_output =
      response_mode_ == BodyMode::kFullDuplexStreamed || response_mode_ == BodyMode::kStreamed;
  input.keep_scores = core_.options.emit_scores;
  return input;
}

Processor::Next Processor::resume(Answers& answers) {
  now_ = core_.clock.now();
  return decide(answers, asked_whole_);
}

Processor::Next Processor::decide(Answers& answers, bool whole_body) {
  director::Request& request = watching_->request;
  director::RequestInput in = input();
  if (whole_body) {
    in.body = deciding_->body.padded();
  } else {
    in.bodyless = true;
  }
  if (!std::exchange(asked_, true) && pool_.director.ask(request, in)) {
    asked_whole_ = whole_body;
    return Next::kAsk;
  }
  Status decided = pool_.director.decide(request, in);
  if (!decided.ok() && request.unreadable && whole_body && !body_ended_ &&
      request_mode_ == BodyMode::kBufferedPartial) {
    // What came is probably the beginning of a body that was too large for the data plane's buffer.
    core_.metrics.unparsed_partial.add();
    whole_body = false;
    in.body = {};
    in.bodyless = true;
    decided = pool_.director.decide(request, in);
  }
  if (!decided.ok()) return answer_refusal(decided.error(), "rejected", answers);
  now_ = request.record.endpoint_chosen_at;  // what comes now comes after that
  request_ = RequestPhase::kDecided;
  answer_choice(answers, whole_body);
  const bool more_to_come = !body_ended_ && !trailers_ && request_mode_ == BodyMode::kStreamed;
  return more_to_come ? Next::kRead : after_request();
}

// Fills `set` and `remove`: what the request's headers must say besides the destination.
void Processor::header_changes(bool whole_body) {
  Deciding& d = *deciding_;
  const director::Request& request = watching_->request;
  d.set.clear();
  d.remove.clear();
  const bool rewritten = !request.rewritten.pieces.empty();
  const size_t size = rewritten ? request.rewritten.size : d.body.size();
  // In full duplex the data plane drops the length whatever we say; elsewhere the client's still holds unless
  // the body changes.
  if (whole_body && size != 0 && (rewritten || request_mode_ == BodyMode::kFullDuplexStreamed)) {
    d.set.push_back({"content-length", decimal(size, d.length_digits)});
  }
  const telemetry::RequestTrace& trace = request.trace;
  if (trace.started()) {
    d.set.push_back({"traceparent", trace.traceparent()});
    if (!trace.tracestate().empty()) d.set.push_back({"tracestate", trace.tracestate()});
  }
  if (made_id_) d.set.push_back({"x-request-id", request_id_});
  for (const HeaderField& field : d.fields) {
    // A compressed answer could not be read, and no name restored in it.
    const bool hides_answer = field.name == "accept-encoding" && request.restore_model;
    // Of a traceparent that could not be read.
    const bool stale_state = field.name == "tracestate" && trace.started() && trace.tracestate().empty();
    if (!hides_answer && !stale_state &&
        (!director::is_control_field(field.name) || field.name == kDestination ||
         field.name == kRouteModel)) {
      continue;
    }
    if (std::find(d.remove.begin(), d.remove.end(), field.name) == d.remove.end()) {
      d.remove.push_back(field.name);
    }
  }
  apply_edits(request.request_edits, d.set, d.remove);
}

void Processor::answer_choice(Answers& answers, bool whole_body) {
  const director::Request& request = watching_->request;
  header_changes(whole_body);
  Choice choice;
  choice.destination = request.destination;
  choice.scores = request.scores;
  choice.headers = {deciding_->set, deciding_->remove};
  const bool rewritten = !request.rewritten.pieces.empty();
  const bool buffered = request_mode_ == BodyMode::kBuffered || request_mode_ == BodyMode::kBufferedPartial;
  if (buffered && chunks_ != 0) {
    Replacement body;
    body.replace = rewritten;
    body.pieces = request.rewritten.pieces;
    answers.choice_on_body(choice, body);
    return;
  }
  answers.choice_on_headers(choice);
  if (request_mode_ == BodyMode::kStreamed) {
    // One answer a chunk. A new body goes out with the first, the others are emptied.
    for (uint32_t i = 0; i < chunks_; ++i) {
      Replacement body;
      body.replace = rewritten;
      if (i == 0) body.pieces = request.rewritten.pieces;
      answers.body(Side::kRequest, body);
    }
  } else if (whole_body) {
    const std::string_view unchanged[] = {request.body.view()};
    const std::span<const std::string_view> pieces =
        rewritten ? request.rewritten.pieces : std::span<const std::string_view>(unchanged);
    const size_t count = answers.streamed_body(Side::kRequest, pieces, core_.options.piece_bytes, !trailers_);
    core_.metrics.pieces[0]->add(count);
  }
  if (trailers_) answers.trailers(Side::kRequest);
}

bool Processor::leaves() const {
  const director::Request& request = watching_->request;
  if (request.parsed.skip_response) return true;
  switch (core_.options.response_phase) {
    case extproc::ResponsePhase::kAlways:
      return false;
    case extproc::ResponsePhase::kNever:
      return true;
    case extproc::ResponsePhase::kAuto:
      return request.policy->load_estimator == nullptr && !request.policy->flow_control &&
             !request.health.open() && !request.restore_model && !request.learns_response &&
             !core_.options.response_metrics && request.policy->response_hooks.empty() &&
             request.response_edits.empty();
  }
  return false;
}

Processor::Next Processor::after_request() {
  // Only after the last answer of the request: earlier the data plane would lose what it has sent already.
  const bool complete =
      body_ended_ || trailers_ || request_mode_ == BodyMode::kNone || request_mode_ == BodyMode::kBuffered;
  if (!complete || response_ != ResponsePhase::kNone || !leaves()) return Next::kRead;
  pool_.credits.add(std::move(watching_->request.load));
  end(0, kLeft, nullptr);
  return Next::kClose;
}

Processor::Next Processor::refuse(const Error& error, std::string_view reason, Answers& answers,
                                  FallbackState state) {
  pool_.director.refuse(watching_->request, input(), error, state);
  return answer_refusal(error, reason, answers);
}

Processor::Next Processor::answer_refusal(const Error& error, std::string_view reason, Answers& answers) {
  Deciding& d = *deciding_;
  const int status = protocol::error_status(error.code).http_status;
  d.set.clear();
  if (core_.options.json_errors) {
    d.error_body = protocol::error_body(error, watching_->request.inference.api, path_, request_id_);
    d.set.push_back({"content-type", kJson});
    d.set.push_back({"x-request-id", request_id_});
  } else {
    d.error_body = protocol::reference_error_text(error);
  }
  if (!error.dropped_reason.empty()) {
    d.set.push_back({"x-llm-d-request-dropped-reason", error.dropped_reason});
  }
  if (const auto field = protocol::error_field(error.code)) d.set.push_back({field->name, field->value});
  answers.immediate({status, d.set, d.error_body});
  std::array<char, 8> digits;
  core_.metrics.immediate.with({decimal(static_cast<uint64_t>(status), digits), reason}).add();
  now_ = core_.clock.now();  // the decision's moments lie before the end
  end(status, reason, &error, d.error_body.size());
  return Next::kClose;
}

// Of the whole request, from now_ on; nothing: there is no limit.
std::optional<Duration> Processor::time_left() const {
  const Duration total = core_.options.body_total_timeout;
  if (total <= Duration::zero()) return std::nullopt;
  return request_ == RequestPhase::kNone ? total : arrived_at_ + total - now_;
}

Duration Processor::patience() const {
  if (!waits_for_request()) return Duration::zero();
  const Duration silence = core_.options.body_timeout;
  const std::optional<Duration> left = time_left();
  if (!left || (silence > Duration::zero() && silence < *left)) return silence;
  return std::max<Duration>(*left, std::chrono::milliseconds(1));
}

Processor::Next Processor::overdue(Answers& answers) {
  const Duration silence = core_.options.body_timeout;
  const std::optional<Duration> left = time_left();
  const bool too_slow = left && (silence <= Duration::zero() || *left <= silence);
  const Duration limit = too_slow ? core_.options.body_total_timeout : silence;
  now_ = core_.clock.now();
  const Error error{ErrorCode::kRequestTimeout,
                    fmt::format("{} {:g} s",
                                too_slow ? "the request body was not complete within"
                                         : "nothing more of the request body came for",
                                to_seconds(limit))};
  if (request_ == RequestPhase::kNone) {
    failure_ = io::GrpcStatus(io::GrpcCode::kDeadlineExceeded, "no request headers came");
    return Next::kFail;
  }
  return refuse(error, "deadline", answers, FallbackState::kOverTime);
}

// --- the response ---

// The data plane's own answers have a status, a length and a type, or a status alone where they have no body,
// and nothing that a server adds; what an engine sent carries more, or the data plane says where it came
// from. gRPC clients get 200, and UNAVAILABLE or DEADLINE_EXCEEDED in headers that are all there is.
bool Processor::is_local_reply(std::string_view message, int status, bool whole) const {
  bool plain = false;
  bool grpc = false;
  bool no_answer = false;
  bool bare = whole;
  for (const HeaderField& field : part_.fields) {
    if (field.name == ":status") continue;
    bare = false;
    if (field.name == "content-length") continue;
    if (field.name == "content-type") {
      plain = field.value == "text/plain";
      grpc = field.value == "application/grpc";
      continue;
    }
    if (field.name == "grpc-status") {
      no_answer = field.value == "14" || field.value == "4";
      continue;
    }
    if (field.name == "x-envoy-overloaded" || field.name == "retry-after") continue;
    if (field.name == "grpc-message") continue;
    return false;
  }
  if (!((plain || bare) && status >= 400) && !(grpc && no_answer && whole && status == 200)) return false;
  const auto upstream = find_attribute(message, "upstream.address");
  return !upstream || value_text(*upstream).value_or("").empty();
}

director::Observer::Served Processor::served(const Incoming& in) const {
  constexpr std::string_view kNamespace = "envoy.lb";
  director::Observer::Served served;
  served.has_lb_metadata = has_metadata(in.metadata, kNamespace);
  if (!served.has_lb_metadata) return served;
  const auto value = find_metadata(in.metadata, kNamespace, "x-gateway-destination-endpoint-served");
  if (value) served.endpoint = value_text(*value);
  return served;
}

std::shared_ptr<const Endpoint> Processor::endpoint_at(std::string_view host_port) const {
  for (const std::shared_ptr<const Endpoint>& endpoint : pool_.director.picture().pool->endpoints) {
    if (endpoint->host_port == host_port) return endpoint;
  }
  return nullptr;
}

void Processor::add_metadata(Answers& answers) {
  if (!observed_) return;
  std::vector<Answers::Number>& numbers = part_.numbers;
  numbers.clear();
  for (const director::Observer::Metadata& number : watching_->observer.metadata()) {
    numbers.push_back({number.ns, number.name, number.value});
  }
  answers.add_metadata(numbers);
}

Processor::Next Processor::response_headers(const Incoming& in, std::string_view message, Answers& answers) {
  if (response_ != ResponsePhase::kNone) {
    return fail(io::GrpcCode::kInvalidArgument, "response headers came twice");
  }
  std::vector<HeaderField>& fields = part_.fields;
  fields.clear();
  bool end_of_stream = false;
  if (!decode_headers(in.content, fields, end_of_stream)) {
    return fail(io::GrpcCode::kInvalidArgument, "response headers are no valid HttpHeaders");
  }
  const bool decided = request_ == RequestPhase::kDecided;
  response_ = ResponsePhase::kBody;
  std::string_view type;
  std::string_view encoding;
  for (const HeaderField& field : fields) {
    if (field.name == ":status" || (field.name == "status" && status_ == 0)) status_ = status_of(field.value);
    if (field.name.size() == 12 && ascii_iequals(field.name, "content-type")) type = field.value;
    if (field.name.size() == 16 && ascii_iequals(field.name, "content-encoding")) encoding = field.value;
  }
  std::vector<HeaderField>& set = part_.set;
  std::vector<std::string_view>& remove = part_.remove;
  set.assign(1, {"x-went-into-resp-headers", "true"});
  remove.clear();
  if (!decided) {
    // The data plane answered before it had the whole request, or shows responses only.
    if (has_request_) {
      pool_.director.refuse(watching_->request, input(), Error{ErrorCode::kClientClosed, "not decided"});
      end(status_, "envoy_reply", nullptr);
    }
  } else {
    const director::Observer::Served by = served(in);
    const bool elsewhere =
        by.endpoint && !by.endpoint->empty() && *by.endpoint != watching_->request.record.winner_host_port;
    if (elsewhere) {
      core_.metrics.served_elsewhere.add();
      // This is another endpoint's answer: it says nothing of the one that was picked.
      watching_->request.health.release();
    }
    if (is_local_reply(message, status_, end_of_stream)) {
      std::array<char, 8> digits;
      core_.metrics.local_replies.with({decimal(static_cast<uint64_t>(status_), digits)}).add();
      local_reply_ = true;
    } else {
      observed_ = true;
      watching_->observer.head(status_, type, encoding, now_, by);
      part_.edits.clear();
      watching_->observer.append_header_edits(part_.edits);
      apply_edits(part_.edits, set, remove);
      restores_ = watching_->observer.rewrites();
      if (elsewhere && watching_->observer.learns_response())
        watching_->observer.made_by(endpoint_at(*by.endpoint));
      director::RequestHealth& health = watching_->request.health;
      if (director::is_failure_status(status_)) {
        health.fail_status(status_, end_of_stream || find_header(fields, "content-length") == "0", now_);
      } else if (response_mode_ == BodyMode::kNone) {
        health.output(now_);  // no more is shown
        health.succeed(now_);
      }
      if (restores_) {
        for (const std::string_view name : kBodyFields) {
          if (find_header(fields, name)) remove.push_back(name);
        }
      }
    }
  }
  answers.headers(Side::kResponse, {set, remove});
  if (!end_of_stream) return Next::kRead;
  if (observed_) {
    part_.pieces.clear();
    watching_->observer.body_end(part_.pieces);
    add_metadata(answers);
  }
  return response_ends();
}

Processor::Next Processor::response_ends() {
  response_ = ResponsePhase::kDone;
  return Next::kRead;
}

Processor::Next Processor::response_body(const Incoming& in, Answers& answers) {
  std::string_view bytes;
  bool end_of_stream = false;
  if (!decode_body(in.content, bytes, end_of_stream)) {
    return fail(io::GrpcCode::kInvalidArgument, "a response body is no valid HttpBody");
  }
  if (response_ != ResponsePhase::kBody) {
    return fail(io::GrpcCode::kInvalidArgument, response_ == ResponsePhase::kNone
                                                    ? "a response body came before its headers"
                                                    : "a response body came after its end");
  }
  std::vector<std::string_view>& pieces = part_.pieces;
  pieces.clear();
  // What a buffered answer leaves out passes by itself.
  const bool last =
      end_of_stream || response_mode_ == BodyMode::kBuffered || response_mode_ == BodyMode::kBufferedPartial;
  if (observed_) {
    watching_->observer.piece(bytes, now_, pieces);
    if (last) watching_->observer.body_end(pieces);
  } else if (!bytes.empty()) {
    pieces.push_back(bytes);
  }
  if (response_mode_ == BodyMode::kFullDuplexStreamed) {
    core_.metrics.pieces[1]->add(
        answers.streamed_body(Side::kResponse, pieces, core_.options.piece_bytes, end_of_stream));
  } else {
    Replacement body;
    body.replace = restores_;
    body.pieces = pieces;
    answers.body(Side::kResponse, body);
  }
  if (!last) return Next::kRead;
  add_metadata(answers);
  return response_ends();
}

Processor::Next Processor::response_trailers(Answers& answers) {
  if (response_ == ResponsePhase::kNone) {
    return fail(io::GrpcCode::kInvalidArgument, "response trailers came before the headers");
  }
  const bool open = response_ == ResponsePhase::kBody;
  if (open && observed_) {
    std::vector<std::string_view>& pieces = part_.pieces;
    pieces.clear();
    watching_->observer.body_end(pieces);
    if (response_mode_ == BodyMode::kFullDuplexStreamed) {
      core_.metrics.pieces[1]->add(
          answers.streamed_body(Side::kResponse, pieces, core_.options.piece_bytes, false));
    }
  }
  answers.trailers(Side::kResponse);
  if (open) add_metadata(answers);
  return response_ends();
}

}  // namespace penstock::extproc
