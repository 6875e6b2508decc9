#pragma once
// A bounded JSON reader: calls a handler for every value, builds no tree, and so allocates in proportion to the longest
// string and to the distinct keys of open objects only.

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace samara::formats {

struct JsonObject {};  // marks the beginning of an object
struct JsonArray {};   // marks the beginning of an array
using JsonValue = std::variant<std::nullptr_t, bool, uint64_t, int64_t, double, std::string, JsonObject, JsonArray>;

/// `path` holds the keys from the root to the value; the elements of an array have "[]" there.
using JsonHandler = std::function<void(std::span<const std::string> path, JsonValue& value)>;

/// Walks `text`. Throws Error(kFormat), with `name` in front, for malformed JSON, invalid UTF-8, a key that appears
/// twice in an object, or values nested more than 16 deep. What the handler throws passes through.
void walk_json(std::string_view text, const std::string& name, const JsonHandler& handler);

/// "integer 3", "string 'x'", "an array", for messages.
std::string describe_json(const JsonValue& value);

/// A small JSON document (a model's configuration) as a flat table: "rope_parameters.rope_theta" -> one value; arrays
/// -> their scalar elements.
class JsonTable {
  public:
    /// Throws as walk_json does.
    JsonTable(std::string_view text, std::string name);

    bool has(std::string_view key) const;  // present and not null
    // Required values. Throw Error(kFormat) naming file and key, what was expected and what was found.
    uint64_t get_uint(std::string_view key, uint64_t low, uint64_t high) const;
    double get_number(std::string_view key) const;
    const std::string& get_string(std::string_view key) const;
    const std::vector<JsonValue>& get_array(std::string_view key) const;
    /// Calls `use` for the value, or for each element of the array, under `key`; not at all when it is absent.
    void for_each(std::string_view key, const std::function<void(const JsonValue&)>& use) const;
    const std::string& name() const { return name_; }

  private:
    struct Entry {
        bool is_array = false;
        std::vector<JsonValue> values;
    };
    const Entry* find(std::string_view key) const;
    const JsonValue& scalar(std::string_view key, std::string_view expected) const;
    [[noreturn]] void wrong(std::string_view key, std::string_view expected, const std::string& found) const;

    std::string name_;
    std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace samara::formats
