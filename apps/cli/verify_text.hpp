#pragma once
// What `samara verify` lets a model read: plain English, written for this purpose, so that no model was trained on it.
// Figures of different machines and versions compare only while it stays as it is.

#include <string_view>

namespace samara::cli {

inline constexpr std::string_view kVerifyText =
    R"(The ferry to the island leaves at seven in the morning and comes back after dark, so whoever misses it has a long day
to think about the reason. On the first Monday of October there were four passengers. Two of them were brothers who
repaired roofs, and they had brought a ladder that was longer than the cabin. The third was a girl of eleven with a
cello. The fourth was the new doctor, who had never been on a boat and kept her eyes on the horizon, because a book had
told her to.

Halfway across, the engine stopped. It did not cough or smoke; it simply became quiet, and for a moment everybody could
hear the water along the hull. The captain went below with a lamp. After ten minutes he came up again and said that a
small brass valve had broken, that he had no second one, and that the radio would bring a tug by noon.

The older brother asked to see the pieces. He turned them over in his hand, measured them against his thumb, and looked
for a while at the cello. A string, he explained, is only a wire that has been wound very evenly. If the girl could
spare the thickest one, he could bind the valve well enough to last for an hour.

She thought about it. She had a lesson at nine, and the teacher did not like excuses. Then she loosened the peg, drew
the string out, and gave it to him without a word.

They reached the harbour at twenty past eight. The doctor paid for a new string, the captain paid for breakfast, and the
girl played her lesson on three strings, which, as she told her mother that evening, is more difficult than it sounds
but not as difficult as waiting.
)";

}  // namespace samara::cli
