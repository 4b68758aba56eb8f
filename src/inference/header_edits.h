#pragma once

#include <span>
#include <string_view>

#include "base/arena.h"

namespace penstock {

// What plugins want changed in the headers of one request and of its answer. Lives in the request's arena;
// names are lower-case. The front door removes first, then sets (replacing what is there). Bounded: edits
// beyond kMaxEdits are dropped and counted.
class HeaderEdits {
 public:
  static constexpr size_t kMaxEdits = 32;
  struct Edit {
    std::string_view name;
    std::string_view value;
    bool remove = false;
  };

  explicit HeaderEdits(Arena& arena) : arena_(&arena) {}

  // The last edit of a name counts. Texts are copied into the arena.
  void set_request(std::string_view name, std::string_view value) { put(request_, name, value, false); }
  void remove_request(std::string_view name) { put(request_, name, {}, true); }
  void set_response(std::string_view name, std::string_view value) { put(response_, name, value, false); }

  std::span<const Edit> request() const { return request_.view(); }
  std::span<const Edit> response() const { return response_.view(); }
  size_t dropped() const { return dropped_; }

 private:
  struct List {
    std::span<Edit> edits;
    size_t count = 0;
    std::span<const Edit> view() const { return edits.first(count); }
  };

  void put(List& list, std::string_view name, std::string_view value, bool remove) {
    if (list.edits.empty()) list.edits = arena_->make_filled<Edit>(kMaxEdits);
    size_t at = 0;
    while (at < list.count && list.edits[at].name != name) ++at;
    if (at == kMaxEdits) {
      ++dropped_;
      return;
    }
    if (at == list.count) {
      ++list.count;
      list.edits[at].name = arena_->copy(name);
    }
    list.edits[at].value = arena_->copy(value);
    list.edits[at].remove = remove;
  }

  Arena* arena_;
  List request_;
  List response_;
  size_t dropped_ = 0;
};

}  // namespace penstock
