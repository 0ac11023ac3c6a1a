"""Programs in the manner of code that nobody here wrote: their APIs and styles."""
