#include "io/http.h"

#include <array>

namespace penstock::io {

std::string_view reason_phrase(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 101:
      return "Switching Protocols";
    case 103:
      return "Early Hints";
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 206:
      return "Partial Content";
    case 301:
      return "Moved Permanently";
    case 302:
      return "Found";
    case 303:
      return "See Other";
    case 304:
      return "Not Modified";
    case 307:
      return "Temporary Redirect";
    case 308:
      return "Permanent Redirect";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 406:
      return "Not Acceptable";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 410:
      return "Gone";
    case 411:
      return "Length Required";
    case 412:
      return "Precondition Failed";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 421:
      return "Misdirected Request";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    case 529:
      return "Site is overloaded";
    default:
      return "Unknown";
  }
}

Task<Result<std::span<char>>> HttpExchange::read_all_within(size_t limit, BodyBudget& budget) {
  Result<std::span<char>> body = co_await read_all(limit);
  if (body.ok() && !budget.hold(body->size()))
    co_return Error{ErrorCode::kResourceExhausted, "there is no room for the request body"};
  co_return body;
}

Task<Status> HttpExchange::write(std::string_view piece) {
  co_return co_await write(std::span<const std::string_view>(&piece, 1));
}

Task<Status> HttpExchange::respond(int status, std::string_view content_type, std::string_view body,
                                   std::span<const HeaderField> more_fields) {
  std::vector<HeaderField> fields;
  fields.reserve(more_fields.size() + 1);
  if (!content_type.empty()) fields.push_back({"content-type", content_type});
  fields.insert(fields.end(), more_fields.begin(), more_fields.end());
  Status written = write_head(status, fields, BodyFraming::of_length(body.size()));
  if (!written.ok()) co_return written;
  co_return co_await finish(std::span<const std::string_view>(&body, 1));
}

}  // namespace penstock::io
