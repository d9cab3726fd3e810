"""Files, directories and object stores: durable writes, sealed manifests, leases, byte streams and what is remembered of them."""
