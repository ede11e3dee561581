"""The residual stream: what each component adds, along which direction, through which lens."""
