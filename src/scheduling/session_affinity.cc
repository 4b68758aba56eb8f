#include "scheduling/session_affinity.h"

#include <algorithm>
#include <cmath>

#include "base/base64.h"
#include "base/hash.h"
#include "base/strings.h"
#include "scheduling/nested_params.h"

namespace penstock::scheduling {

namespace {

Duration to_duration(double seconds) {
  constexpr double kMax = 1e9;
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::min(seconds, kMax)));
}

std::string clean(const std::string& header) {
  return ascii_lower(trim(header));
}

}  // namespace

// --- SessionTable -------------------------------------------------------------------------------------

std::string_view SessionTable::find(uint64_t session, Arena& arena) const {
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(session);
  return found == index_.end() ? std::string_view() : arena.copy(found->second->endpoint_id);
}

void SessionTable::sweep(TimePoint now, Duration ttl, Duration interval) {
  std::list<Entry> swept;  // goes after the lock
  const std::lock_guard lock(mutex_);
  if (last_sweep_ != TimePoint{} && now - last_sweep_ < interval) return;
  while (!entries_.empty() && now - entries_.front().last_seen > ttl) {
    if (swept.size() == kMaxSwept) return;
    index_.erase(entries_.front().session);
    swept.splice(swept.end(), entries_, entries_.begin());
  }
  last_sweep_ = now;
}

size_t SessionTable::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

// --- SessionAffinity ----------------------------------------------------------------------------------

void SessionAffinity::bind(config::Binder& b, Params& p) {
  std::string strategy = "encoded_endpoint_header";
  b.field("strategy", strategy, "",
          "encoded_endpoint_header (the answer names its endpoint in a header that the client sends back) or "
          "session_id (a table of sessions).");
  b.field("profileName", p.profile, "", "Profile whose first target counts; empty: the primary one.");
  nested(b, "encodedEndpointHeaderConfig", "{header}: name of the header, x-session-token where absent.",
         [&](config::Binder& c) { c.field("header", p.header, "", ""); });
  nested(
      b, "sessionIdConfig",
      "{sources, evictionTtlSeconds, evictionSweepSeconds}: where the session id comes from, a list of "
      "{header} or {attribute, producer}, x-session-id where absent; how long a session is remembered (300 "
      "s) and how often the old are forgotten (10 s).",
      [&](config::Binder& c) {
        nested_list(c, "sources", "", [&](config::Binder& s) {
          Source source;
          s.field("header", source.header, "", "");
          s.field("attribute", source.attribute, "", "");
          s.field("producer", source.producer, "", "");
          source.header = clean(source.header);
          if (source.header.empty() == source.attribute.empty()) {
            s.fail("header", "sources[" + std::to_string(p.sources.size()) +
                                 "]: exactly one of header or attribute must be set");
          }
          p.sources.push_back(std::move(source));
        });
        double ttl = 0;
        double sweep = 0;
        c.field("evictionTtlSeconds", ttl, "", "");
        c.field("evictionSweepSeconds", sweep, "", "");
        if (!(ttl >= 0)) c.fail("evictionTtlSeconds", "evictionTtlSeconds must be > 0");
        if (!(sweep >= 0)) c.fail("evictionSweepSeconds", "evictionSweepSeconds must be > 0");
        if (ttl > 0) p.ttl_seconds = ttl;
        if (sweep > 0) p.sweep_seconds = sweep;
      });
  p.header = clean(p.header);
  if (p.header.empty()) p.header = "x-session-token";
  if (p.sources.empty()) p.sources.push_back({"x-session-id", {}, {}});
  p.by_session_id = strategy == "session_id";
  if (!b.describing() && !p.by_session_id && strategy != "encoded_endpoint_header") {
    b.fail("strategy",
           "strategy must be \"encoded_endpoint_header\" or \"session_id\", got \"" + strategy + "\"");
  }
}

std::shared_ptr<SessionTable> SessionAffinity::make_table(const PluginFactoryContext& context,
                                                          std::string_view type) {
  const auto make = []() -> Result<std::shared_ptr<SessionTable>> {
    return std::make_shared<SessionTable>();
  };
  if (context.warm == nullptr) return *make();
  return *context.warm->get<SessionTable>(std::string(type) + "/" + std::string(context.name) + "/sessions",
                                          make);
}

SessionAffinity::SessionAffinity(Params params, std::shared_ptr<SessionTable> table)
    : params_(std::move(params)),
      table_(std::move(table)),
      slots_(params_.sources.size(), kNoSlot),
      ttl_(to_duration(params_.ttl_seconds)),
      sweep_(to_duration(params_.sweep_seconds)) {}

DataKey SessionAffinity::key_of(const Source& source) const {
  if (source.producer.has_value()) return {source.attribute, *source.producer};
  if (source.attribute == data_keys::kSessionId.data_type) return data_keys::kSessionId;
  return {source.attribute, ""};
}

void SessionAffinity::declare(DataDeclaration& declaration) const {
  if (!params_.by_session_id) return;
  for (const Source& source : params_.sources) {
    if (source.header.empty() && key_of(source) != data_keys::kAgentIdentity)
      declaration.optional<SessionId>(key_of(source));
  }
}

void SessionAffinity::bind_slots(const SlotResolver& slots) {
  if (!params_.by_session_id) return;
  for (size_t i = 0; i < params_.sources.size(); ++i) {
    const Source& source = params_.sources[i];
    if (source.header.empty() && key_of(source) != data_keys::kAgentIdentity)
      slots_[i] = slots.slot(key_of(source));
  }
}

uint64_t SessionAffinity::session_of(const SchedulingContext& ctx) const {
  for (size_t i = 0; i < params_.sources.size(); ++i) {
    const Source& source = params_.sources[i];
    std::string_view value;
    if (!source.header.empty()) {
      value = find_header(ctx.request.headers, source.header).value_or(std::string_view());
    } else if (slots_[i] != kNoSlot) {
      const auto* id = ctx.attributes.value<SessionId>(slots_[i]);
      if (id != nullptr) value = id->text;
    } else if (key_of(source) == data_keys::kAgentIdentity) {
      value = ctx.request.agent_identity;
    }
    value = trim(value);
    if (!value.empty()) return std::max<uint64_t>(hash_of(value), 1);
  }
  return 0;
}

std::string_view SessionAffinity::bound_endpoint(const SchedulingContext& ctx) const {
  if (params_.by_session_id) {
    const uint64_t session = session_of(ctx);
    return session == 0 ? std::string_view() : table_->find(session, ctx.arena);
  }
  const auto token = find_header(ctx.request.headers, params_.header);
  if (!token || token->empty()) return {};
  return base64_decode(*token, ctx.arena).value_or(std::string_view());
}

std::optional<std::string> SessionAffinity::dump_state() const {
  if (!params_.by_session_id) return std::nullopt;
  return "{\"sessions\":" + std::to_string(table_->size()) +
         ",\"maxSessions\":" + std::to_string(SessionTable::kMaxSessions) + "}";
}

void SessionAffinity::remember(SchedulingContext& ctx, const SchedulingResult& result) const {
  const ProfileResult* profile = params_.profile.empty() ? result.primary : nullptr;
  for (const ProfileResult* candidate : result.profiles) {
    if (profile == nullptr && candidate != nullptr && candidate->profile_name == params_.profile)
      profile = candidate;
  }
  if (profile == nullptr || profile->targets.empty()) return;
  const std::string& id = ctx.pool.endpoints[profile->targets[0]]->id;
  if (!params_.by_session_id) {
    if (ctx.edits != nullptr) ctx.edits->set_response(params_.header, base64_encode(id));
    return;
  }
  table_->sweep(ctx.now, ttl_, sweep_);
  const uint64_t session = session_of(ctx);
  if (session == 0) return;
  table_->bind(session, id, ctx.now, [&](std::string_view bound) {
    return std::any_of(profile->scored.begin(), profile->scored.end(),
                       [&](Candidate c) { return ctx.pool.endpoints[c]->id == bound; });
  });
}

}  // namespace penstock::scheduling
