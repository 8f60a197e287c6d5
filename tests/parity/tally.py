"""How much a run compared. A setting is one schedule: a generator with its shape, or one random or hand-written schedule."""

_settings = set()
_comparisons = 0


def count(setting):
    global _comparisons
    _settings.add(str(setting))
    _comparisons += 1


def summary():
    return f"{len(_settings)} settings compared with PyTorch in {_comparisons} comparisons"
