#pragma once

#include <string_view>

namespace penstock::director {

// The id in the path of a request for one stored response: GET and DELETE /v1/responses/{id}, GET
// …/{id}/input_items, POST …/{id}/cancel, whatever stands before /v1; empty: it is none. A view into `path`,
// which has no query. (OpenAI's API reference, Responses.)
std::string_view stored_response_id(std::string_view method, std::string_view path);

}  // namespace penstock::director
