"""Programs in the manner of code that nobody here wrote: other people's APIs and training styles."""
