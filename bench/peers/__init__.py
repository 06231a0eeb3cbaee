"""The peers. Each is used as its own manual advises, with the types declared (no inference is timed), on all
cores and no more. None keeps anything between runs but a warm process and the static tables."""
