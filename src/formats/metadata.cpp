#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "src/formats/checkpoint.hpp"
#include "src/formats/text.hpp"

namespace samara::formats {
namespace {

template <typename T>
constexpr bool kIsInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

std::string describe(const MetaValue& value) {
    return std::visit(
        [](const auto& v) -> std::string {
            using T = std::decay_t<decltype(v)>;
            if constexpr (std::is_same_v<T, std::string>) {
                return "string " + in_quotes(v);
            } else if constexpr (std::is_same_v<T, bool>) {
                return v ? "bool true" : "bool false";
            } else if constexpr (std::is_floating_point_v<T>) {
                return "float " + std::to_string(v);
            } else if constexpr (std::is_integral_v<T>) {
                return "integer " + std::to_string(v);
            } else {
                const size_t count = std::visit([](const auto& items) { return items.size(); }, v->items);
                return "an array of " + std::to_string(count) + " values";
            }
        },
        value);
}

[[noreturn]] void wrong(const std::string& file, std::string_view key, const std::string& expected,
                        const MetaValue& found) {
    throw Error(ErrorCode::kFormat,
                file + ": key " + in_quotes(key) + ": expected " + expected + ", found " + describe(found));
}

const MetaValue& required(const Metadata& metadata, std::string_view key) {
    if (const MetaValue* value = metadata.find(key)) return *value;
    throw Error(ErrorCode::kFormat, metadata.file() + ": key " + in_quotes(key) + " is missing");
}

const MetaArray& required_array(const Metadata& metadata, std::string_view key, const std::string& expected) {
    const MetaValue& value = required(metadata, key);
    const auto* array = std::get_if<std::shared_ptr<const MetaArray>>(&value);
    if (array == nullptr || *array == nullptr) wrong(metadata.file(), key, expected, value);
    return **array;
}

}  // namespace

void Metadata::set(std::string key, MetaValue value) { entries_.insert_or_assign(std::move(key), std::move(value)); }

bool Metadata::has(std::string_view key) const { return find(key) != nullptr; }

const MetaValue* Metadata::find(std::string_view key) const {
    const auto entry = entries_.find(key);
    return entry == entries_.end() ? nullptr : &entry->second;
}

uint64_t Metadata::get_uint(std::string_view key, uint64_t low, uint64_t high) const {
    const MetaValue& value = required(*this, key);
    const std::optional<uint64_t> found = std::visit(
        [](const auto& v) -> std::optional<uint64_t> {
            using T = std::decay_t<decltype(v)>;
            if constexpr (kIsInteger<T>) {
                if (std::in_range<uint64_t>(v)) return static_cast<uint64_t>(v);
            }
            return std::nullopt;
        },
        value);
    if (!found || *found < low || *found > high) {
        std::string expected = "an integer between " + std::to_string(low) + " and " + std::to_string(high);
        if (high == UINT64_MAX) expected = "an integer of at least " + std::to_string(low);
        if (low == high) expected = "the integer " + std::to_string(low);
        wrong(file_, key, expected, value);
    }
    return *found;
}

double Metadata::get_float(std::string_view key) const {
    const MetaValue& value = required(*this, key);
    const double found = std::visit(
        [](const auto& v) -> double {
            using T = std::decay_t<decltype(v)>;
            if constexpr (std::is_floating_point_v<T> || kIsInteger<T>) {
                return static_cast<double>(v);
            } else {
                return std::numeric_limits<double>::quiet_NaN();
            }
        },
        value);
    if (!std::isfinite(found)) wrong(file_, key, "a finite number", value);
    return found;
}

bool Metadata::get_bool(std::string_view key) const {
    const MetaValue& value = required(*this, key);
    const bool* found = std::get_if<bool>(&value);
    if (found == nullptr) wrong(file_, key, "a bool", value);
    return *found;
}

const std::string& Metadata::get_string(std::string_view key) const {
    const MetaValue& value = required(*this, key);
    const auto* found = std::get_if<std::string>(&value);
    if (found == nullptr) wrong(file_, key, "a string", value);
    return *found;
}

const std::vector<std::string>& Metadata::get_strings(std::string_view key) const {
    const MetaArray& array = required_array(*this, key, "an array of strings");
    const auto* found = std::get_if<std::vector<std::string>>(&array.items);
    if (found == nullptr) wrong(file_, key, "an array of strings", required(*this, key));
    return *found;
}

std::vector<int64_t> Metadata::get_ints(std::string_view key) const {
    const std::string expected = "an array of integers or bools";
    const MetaArray& array = required_array(*this, key, expected);
    std::vector<int64_t> out;
    const bool fits = std::visit(
        [&](const auto& items) {
            using T = typename std::decay_t<decltype(items)>::value_type;
            if constexpr (std::is_integral_v<T>) {
                out.reserve(items.size());
                for (const T item : items) {
                    if constexpr (std::is_same_v<T, uint64_t>) {
                        if (!std::in_range<int64_t>(item)) return false;
                    }
                    out.push_back(static_cast<int64_t>(item));
                }
                return true;
            } else {
                return items.empty();
            }
        },
        array.items);
    if (!fits) wrong(file_, key, expected, required(*this, key));
    return out;
}

std::vector<double> Metadata::get_floats(std::string_view key) const {
    const std::string expected = "an array of finite numbers";
    const MetaArray& array = required_array(*this, key, expected);
    std::vector<double> out;
    const bool fits = std::visit(
        [&](const auto& items) {
            using T = typename std::decay_t<decltype(items)>::value_type;
            if constexpr (std::is_floating_point_v<T> || kIsInteger<T>) {
                out.reserve(items.size());
                for (const T item : items) {
                    out.push_back(static_cast<double>(item));
                    if (!std::isfinite(out.back())) return false;
                }
                return true;
            } else {
                return items.empty();
            }
        },
        array.items);
    if (!fits) wrong(file_, key, expected, required(*this, key));
    return out;
}

uint64_t Metadata::get_uint_or(std::string_view key, uint64_t fallback) const {
    return has(key) ? get_uint(key) : fallback;
}
double Metadata::get_float_or(std::string_view key, double fallback) const {
    return has(key) ? get_float(key) : fallback;
}
bool Metadata::get_bool_or(std::string_view key, bool fallback) const { return has(key) ? get_bool(key) : fallback; }
std::string Metadata::get_string_or(std::string_view key, std::string fallback) const {
    if (has(key)) return get_string(key);
    return fallback;
}

}  // namespace samara::formats
