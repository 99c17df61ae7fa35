"""What bounded replay spares in the engine, counted where its steps run, under the Reference engine's names."""
