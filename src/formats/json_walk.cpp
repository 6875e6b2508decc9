#include "src/formats/json_walk.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "src/formats/text.hpp"
#include "src/platform/error.hpp"

namespace samara::formats {
namespace {

constexpr size_t kDeepest = 16;

/// Receives nlohmann's events and keeps the path.
class Walker final : public nlohmann::json_sax<nlohmann::json> {
  public:
    Walker(const std::string& name, const JsonHandler& handler) : name_(name), handler_(handler) {}

    bool null() override { return value(nullptr); }
    bool boolean(bool v) override { return value(v); }
    bool number_integer(number_integer_t v) override { return value(static_cast<int64_t>(v)); }
    bool number_unsigned(number_unsigned_t v) override { return value(static_cast<uint64_t>(v)); }
    bool number_float(number_float_t v, const string_t&) override { return value(v); }
    bool string(string_t& v) override { return value(std::move(v)); }
    bool binary(binary_t&) override { return false; }
    bool start_object(std::size_t) override {
        value(JsonObject{});
        open(false);
        return true;
    }
    bool key(string_t& k) override {
        Level& level = levels_.back();
        if (!level.keys.insert(k).second) {
            throw Error(ErrorCode::kFormat, name_ + ": key " + in_quotes(k) + " appears twice in one object");
        }
        path_.back() = std::move(k);
        return true;
    }
    bool end_object() override { return close(); }
    bool start_array(std::size_t) override {
        value(JsonArray{});
        open(true);
        return true;
    }
    bool end_array() override { return close(); }
    bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
        std::string detail = error.what();
        if (const size_t colon = detail.find("; last read"); colon != std::string::npos) detail.resize(colon);
        if (const size_t colon = detail.rfind(": "); colon != std::string::npos) detail.erase(0, colon + 2);
        throw Error(ErrorCode::kFormat, name_ + ": expected JSON, found an error at byte " + std::to_string(position) +
                                            " (" + detail + ")");
    }

  private:
    struct Level {
        std::unordered_set<std::string> keys;
    };

    bool value(JsonValue v) {
        handler_(path_, v);
        return true;
    }
    void open(bool is_array) {
        if (levels_.size() == kDeepest) {
            throw Error(ErrorCode::kFormat,
                        name_ + ": expected JSON nested at most " + std::to_string(kDeepest) + " deep, found more");
        }
        levels_.emplace_back();
        path_.emplace_back(is_array ? "[]" : "");
    }
    bool close() {
        levels_.pop_back();
        path_.pop_back();
        return true;
    }

    const std::string& name_;
    const JsonHandler& handler_;
    std::vector<std::string> path_;
    std::vector<Level> levels_;
};

}  // namespace

void walk_json(std::string_view text, const std::string& name, const JsonHandler& handler) {
    Walker walker(name, handler);
    nlohmann::json::sax_parse(text.begin(), text.end(), &walker);
}

std::string describe_json(const JsonValue& value) {
    return std::visit(
        [](const auto& v) -> std::string {
            using T = std::decay_t<decltype(v)>;
            if constexpr (std::is_same_v<T, std::nullptr_t>) return "null";
            if constexpr (std::is_same_v<T, bool>) return v ? "true" : "false";
            if constexpr (std::is_same_v<T, std::string>) return "string " + in_quotes(v);
            if constexpr (std::is_same_v<T, JsonObject>) return "an object";
            if constexpr (std::is_same_v<T, JsonArray>) return "an array";
            if constexpr (std::is_arithmetic_v<T>) return "number " + std::to_string(v);
        },
        value);
}

JsonTable::JsonTable(std::string_view text, std::string name) : name_(std::move(name)) {
    bool first = true;
    walk_json(text, name_, [&](std::span<const std::string> path, JsonValue& value) {
        if (std::exchange(first, false)) {
            if (std::holds_alternative<JsonObject>(value)) return;
            throw Error(ErrorCode::kFormat, name_ + ": expected a JSON object, found " + describe_json(value));
        }
        std::string key;
        for (const std::string& part : path) {
            if (part == "[]") break;
            key += (key.empty() ? "" : ".") + part;
        }
        Entry& entry = entries_[key];
        if (std::holds_alternative<JsonArray>(value)) {
            entry.is_array = true;
        } else {
            entry.values.push_back(std::move(value));
        }
    });
}

const JsonTable::Entry* JsonTable::find(std::string_view key) const {
    const auto entry = entries_.find(key);
    return entry == entries_.end() ? nullptr : &entry->second;
}

bool JsonTable::has(std::string_view key) const {
    const Entry* entry = find(key);
    return entry != nullptr &&
           (entry->is_array || (!entry->values.empty() && !std::holds_alternative<std::nullptr_t>(entry->values[0])));
}

void JsonTable::wrong(std::string_view key, std::string_view expected, const std::string& found) const {
    throw Error(ErrorCode::kFormat,
                name_ + ": key " + in_quotes(key) + ": expected " + std::string(expected) + ", found " + found);
}

const JsonValue& JsonTable::scalar(std::string_view key, std::string_view expected) const {
    const Entry* entry = find(key);
    if (entry == nullptr) wrong(key, expected, "nothing");
    if (entry->is_array || entry->values.size() != 1) wrong(key, expected, "an array");
    return entry->values[0];
}

uint64_t JsonTable::get_uint(std::string_view key, uint64_t low, uint64_t high) const {
    const std::string expected = "an integer from " + std::to_string(low) + " to " + std::to_string(high);
    const JsonValue& value = scalar(key, expected);
    const auto* found = std::get_if<uint64_t>(&value);
    if (found == nullptr || *found < low || *found > high) wrong(key, expected, describe_json(value));
    return *found;
}

double JsonTable::get_number(std::string_view key) const {
    const JsonValue& value = scalar(key, "a finite number");
    double found = NAN;
    if (const auto* real = std::get_if<double>(&value)) found = *real;
    if (const auto* natural = std::get_if<uint64_t>(&value)) found = static_cast<double>(*natural);
    if (const auto* integer = std::get_if<int64_t>(&value)) found = static_cast<double>(*integer);
    if (!std::isfinite(found)) wrong(key, "a finite number", describe_json(value));
    return found;
}

const std::string& JsonTable::get_string(std::string_view key) const {
    const JsonValue& value = scalar(key, "a string");
    const auto* found = std::get_if<std::string>(&value);
    if (found == nullptr) wrong(key, "a string", describe_json(value));
    return *found;
}

const std::vector<JsonValue>& JsonTable::get_array(std::string_view key) const {
    const Entry* entry = find(key);
    if (entry == nullptr) wrong(key, "an array", "nothing");
    if (!entry->is_array) wrong(key, "an array", describe_json(entry->values[0]));
    return entry->values;
}

void JsonTable::for_each(std::string_view key, const std::function<void(const JsonValue&)>& use) const {
    const Entry* entry = find(key);
    if (entry == nullptr) return;
    for (const JsonValue& value : entry->values) use(value);
}

}  // namespace samara::formats
