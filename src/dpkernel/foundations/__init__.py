"""What knows neither data nor privacy: types, errors, validation, rounding, entropy, archives."""
