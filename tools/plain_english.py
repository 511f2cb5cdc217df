"""Find phrases that are hard to read or to search for, and say what to write instead. CONTRIBUTING.md has the rule.

python tools/plain_english.py            all tracked texts of the product and its documents
python tools/plain_english.py FILE ...   these files
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("core", "loader", "engine", "plugins", "benchmarks", "tools", "examples", "docs", "tests", "cmake")
SKIPPED = ("tools/plain_english.py", "tests/test_tools.py", "tests/data/")  # they contain the phrases; texts of others
SUFFIXES = (".py", ".md", ".c", ".h", ".cpp", ".hpp", ".cmake", ".toml", ".txt", ".in")
# Each phrase, and what to write instead. Case does not matter, and a space also matches a line break.
PHRASES = {
    r"what (is|are) (no|(?-i:none)|not an?)\b": 'name it: "unless x is a Tensor", "a value that is not a number"',
    r"(that|which|who|it|one) (is|are) (?-i:none)\b": '"is not a …", "is missing"',
    r"there (is|are) none\b": '"… is missing", "… does not exist"',
    r"\b(and|and that) be it\b": '"even if it is …"',
    r"\bas (many|much) as there (is|are)\b": '"all …"',
    r"\bwho(m)?ever\b": '"callers who …", "the user", "a thread that …"',
    r"\bnobody who\b": '"no caller that …"',
    r"\bwho would\b": '"users who want to …"',
    r"\banew\b": '"again"',
    r"(is|are|was|were) not to be had\b": '"is not available", "is missing"',
    r"\bbut for (?!\w+ing\b)": '"except"',
    r"\bin the stead of\b|\bin \w+'s stead\b": '"instead of"',
    r"(is|are|was|were|be) held against\b": '"is compared with"',
    r"\bwherefrom\b|\bwhence\b|\bthereof\b|\btherein\b|\bwhereof\b": '"from where", "of it", "in it"',
    r"\bby and by\b": '"slowly", "over time"',
    r"\b(of|to|in|for|from|with) naught\b|\bfor nought\b": '"nothing"',
    r"\bsave for\b": '"except"',
    r"\bbeside\b": '"next to", "with", "and"',
    r"(?<!there)(?<!here)(?<!what)(?<!\s) (is|are) no (?!longer|larger|more|less|need|\w+[sthw]er\b)\w+": (
        '"is not a …"'
    ),
}
_PATTERNS = {re.compile(phrase.replace(" ", r"[\s#*/]+"), re.IGNORECASE): better for phrase, better in PHRASES.items()}


def complaints(text: str, name: str) -> list[str]:
    """One line for each phrase in ``text``, with the line number and the replacement."""
    found = []
    for pattern, better in _PATTERNS.items():
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            phrase = " ".join(match[0].split())
            found.append((line, f'{name}:{line}: "{phrase}": write {better}'))
    return [complaint for _, complaint in sorted(found)]


def files() -> list[Path]:
    """The tracked and new files of the product, its documents and its tests."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()
    folders = tuple(f"{folder}/" for folder in FOLDERS)
    ours = sorted({name for name in names if name.startswith(folders) or "/" not in name})
    return [ROOT / name for name in ours if name.endswith(SUFFIXES) and not name.startswith(SKIPPED)]


def main() -> int:
    paths = [Path(name).resolve() for name in sys.argv[1:]] or files()
    found = []
    for path in paths:
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
        if path.is_file() and path.suffix in SUFFIXES and not name.startswith(SKIPPED):
            found += complaints(path.read_text(encoding="utf-8"), name)
    sys.stdout.writelines(f"{line}\n" for line in found)
    if found:
        sys.stderr.write(f"{len(found)} phrases to rewrite; the rule: CONTRIBUTING.md, Plain English\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
