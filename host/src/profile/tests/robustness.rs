use super::*;
use proptest::prelude::*;

/// Text that is often almost right: pieces of real files in any order.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "model: { provider: acme, model: m }\n",
        "providers:\n",
        "  - provider: acme\n",
        "    adapter: openai-chat\n",
        "    chaos: ok\n",
        "    retryPolicy:\n",
        "      mode: always\n",
        "      backoff: { initialDelayMs: 1e999 }\n",
        "      backoff:\n",
        "        maxDelayMs: -5\n",
        "    limits: &x { idleMs: 1 }\n",
        "    maxTokens: 5\n",
        "    models: { a.b: { maxTokens: 0 }, m: { limits: { idleMs: 2 } } }\n",
        "    models:\n",
        "    <<: *x\n",
        "bundles: [base, ./b]\n",
        "- insert:\n",
        "    - id: a\n",
        "      component: a.wasm\n",
        "- id: llm-retry\n",
        "  config: { \"a.b\": [[], {}, null] }\n",
        "- provider: acme\n",
        "  retryPolicy: { mode: normal }\n",
        "[",
        "]",
        "{",
        "}",
        "\n",
        "? ",
        ": ",
        "!!str ",
        "!x ",
        "&a ",
        "*a ",
        "| \n",
        "---\n",
        "\u{feff}",
        "\t",
        "'",
        "\"",
        "é",
        "\0",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever stands in the files, there is a profile or at least one error that names a file, and never a panic.
    #[test]
    fn any_text_composes_or_is_refused(
        profile in prop_oneof![pieces(), any::<String>(), Just(PROVIDER.to_owned())],
        patch in prop_oneof![pieces(), any::<String>()],
    ) {
        let world = World::new(&profile);
        world.write("retake.patch.yml", &patch);
        match world.compose(&[]) {
            Ok(profile) => {
                prop_assert!(profile.model_provider().is_some());
                prop_assert!(to_text(&profile).contains("executors"));
                prop_assert!(to_json(&profile).is_object());
            }
            Err(errors) => {
                prop_assert!(!errors.errors.is_empty());
                prop_assert!(errors.errors.iter().all(|error| error.to_string().contains(".yml")), "{errors}");
            }
        }
    }

    /// Every path that the reader builds leads back to a place in the text.
    #[test]
    fn every_key_of_a_mapping_is_located(keys in prop::collection::btree_set("[a-z][a-z0-9.-]{0,6}", 1..8)) {
        let text: String = keys.iter().map(|key| format!("\"{key}\": {{ x: 1 }}\n")).collect();
        let source = Source::parse(std::path::Path::new("/p.yml"), text).unwrap();
        for (index, key) in keys.iter().enumerate() {
            prop_assert_eq!(source.locate(key), Some((index as u32 + 1, 1)));
        }
    }
}
