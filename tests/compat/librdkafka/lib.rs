// Nothing: Cargo.toml names what is wanted.
