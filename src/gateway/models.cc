#include "gateway/models.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <optional>

namespace penstock::gateway {

namespace {
constexpr Duration kAskTimeout = std::chrono::seconds(2);
constexpr size_t kMaxListBytes = 4 << 20;
}  // namespace

void ModelList::merge(const ModelList& other) {
  for (const auto& entry : other.entries) {
    if (find(entry.first) == nullptr) entries.push_back(entry);
  }
}

std::string ModelList::to_json() const {
  std::string out = R"({"object":"list","data":[)";
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i != 0) out += ',';
    out += entries[i].second;
  }
  out += "]}";
  return out;
}

const std::string* ModelList::find(std::string_view id) const {
  const auto it = std::find_if(entries.begin(), entries.end(), [id](const auto& e) { return e.first == id; });
  return it == entries.end() ? nullptr : &it->second;
}

Result<ModelList> decode_models(std::string_view padded) {
  simdjson::dom::parser parser;
  simdjson::dom::array data;
  const auto error = parser.parse(padded.data(), padded.size(), true)["data"].get(data);
  if (error != simdjson::SUCCESS) {
    return Error{ErrorCode::kBadGateway,
                 std::string("an engine's model list is not readable: ") + simdjson::error_message(error)};
  }
  ModelList list;
  for (const simdjson::dom::element entry : data) {
    std::string_view id;
    if (entry["id"].get(id) != simdjson::SUCCESS) continue;
    list.entries.emplace_back(std::string(id), simdjson::minify(entry));
  }
  return list;
}

struct ModelsCache::Gather {
  explicit Gather(io::Loop& loop) : done(loop) {}
  io::Event done;
  size_t left = 0;
  uint64_t membership = 0;
  TimePoint asked_at = kNever;
  std::vector<std::optional<ModelList>> answers;  // by source, so that the merge has a stable order
};

io::Task<void> ModelsCache::ask(io::HttpClient& client, Source source, size_t position,
                                std::shared_ptr<Gather> gather) {
  std::array<io::HeaderField, 1> fields;
  io::HttpRequest request;
  request.target = "/v1/models";
  if (!source.authorization.empty()) {
    fields[0] = {"authorization", source.authorization};
    request.fields = fields;
  }
  const io::HttpCallOptions options;
  auto answer = co_await client.fetch(source.destination, request, options, kAskTimeout, kMaxListBytes);
  if (answer.ok() && answer->status == 200) {
    if (auto list = decode_models(answer->body); list.ok()) {
      gather->answers[position] = *std::move(list);
    }
  }
  if (--gather->left == 0) gather->done.set();
}

io::Task<Result<std::shared_ptr<const ModelList>>> ModelsCache::get(std::vector<Source> sources,
                                                                    uint64_t membership, TimePoint now) {
  if (list_ != nullptr && membership == membership_ && now - fetched_at_ < kFresh) co_return list_;
  if (sources.empty()) {
    co_return Error{ErrorCode::kServiceUnavailable,
                    "failed to find endpoint candidates for serving the request", "rejected-no-endpoints"};
  }
  std::shared_ptr<Gather> gather = running_;
  // A question to members that have changed since says nothing about those of now.
  const bool mine = gather == nullptr || gather->membership != membership;
  if (mine) {
    gather = std::make_shared<Gather>(client_.loop());
    gather->left = sources.size();
    gather->membership = membership;
    gather->asked_at = now;
    gather->answers.resize(sources.size());
    running_ = gather;
    for (size_t i = 0; i < sources.size(); ++i) {
      io::spawn(client_.loop(), ask(client_, std::move(sources[i]), i, gather));
    }
  }
  const Status waited = co_await gather->done.wait(2 * kAskTimeout);
  if (running_ == gather) running_.reset();
  if (!waited.ok()) co_return waited.error();
  auto merged = std::make_shared<ModelList>();
  bool any = false;
  for (const std::optional<ModelList>& answer : gather->answers) {
    if (!answer) continue;
    any = true;
    merged->merge(*answer);
  }
  if (!any) co_return Error{ErrorCode::kBadGateway, "no engine of the pool told its models"};
  // Nor does it replace the answer to a later one.
  if (list_ == nullptr || gather->asked_at >= fetched_at_) {
    list_ = merged;
    fetched_at_ = gather->asked_at;
    membership_ = gather->membership;
  }
  co_return std::shared_ptr<const ModelList>(std::move(merged));
}

}  // namespace penstock::gateway
