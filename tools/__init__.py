"""Programs that prove or run the product and are not part of it."""
