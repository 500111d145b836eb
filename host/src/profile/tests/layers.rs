use super::*;
use crate::llm::{Backoff, RetryPolicy};
use serde_json::json;

#[test]
fn a_profile_without_bundles_gets_the_official_executor() {
    let profile = World::new(PROVIDER).composed();
    assert_eq!(ids(&profile), ["llm-retry"]);
    let entry = &profile.entries[0];
    assert_eq!(entry.component, ComponentRef::Builtin("llm-retry".into()));
    assert_eq!((entry.config.clone(), entry.limits.clone(), entry.disabled), (json!({}), None, false));
    assert_eq!(profile.bundles, ["base"]);
    assert_eq!((profile.journal, profile.drain_timeout_ms), (JournalKind::Jsonl, 5_000));
    assert_eq!(profile.warnings, []);
}

#[test]
fn an_empty_list_of_bundles_means_no_executors() {
    let profile = World::new(&format!("{PROVIDER}bundles: []\n")).composed();
    assert_eq!(ids(&profile), [] as [&str; 0]);
}

#[test]
fn the_strategy_bundle_replaces_the_official_executor() {
    let profile = World::new(&format!("{PROVIDER}bundles: [base, retry-strategy]\n")).composed();
    assert_eq!(ids(&profile), ["llm-retry", "retry-strategy"]);
    assert_eq!(profile.enabled().map(|entry| entry.id.as_str()).collect::<Vec<_>>(), ["retry-strategy"]);
    assert_eq!(profile.entries[1].component, ComponentRef::Builtin("retry-strategy".into()));
}

#[test]
fn the_demo_profile_composes_without_a_home() {
    let home = Home::new("/nonexistent/retake");
    for profile in [ProfileRef::Demo, ProfileRef::Named("demo".into())] {
        let profile = compose(&home, &profile, &[]).unwrap();
        let provider = profile.model_provider().unwrap();
        assert_eq!(provider.endpoint, Endpoint::Chaos("429:retry-after=1, 503*2, cut:3, ok".into()));
        assert_eq!((profile.name.as_str(), ids(&profile), profile.warnings.len()), ("demo", vec!["llm-retry"], 0));
        // The script's own hint of a second must fit below the longest delay, or nobody would follow it.
        assert!(provider.policy.backoff().max_delay_ms >= 1000.0);
    }
}

#[test]
fn every_layer_may_patch_what_a_lower_one_inserted() {
    let world = World::new(&format!("{PROVIDER}bundles: [base, ./bundles/b]\n"));
    world.write(
        "bundles/b/retake.patch.yml",
        "- id: llm-retry\n  disabled: true\n- insert:\n    - id: mine\n      component: ./mine.wasm\n      config: { a: 1, b: 2 }\n- id: mine\n  limits: { memoryMiB: 8 }\n",
    );
    world.write("retake.patch.yml", "- id: mine\n  config: { a: 3 }\n- id: llm-retry\n  disabled: false\n");
    let first = world.write("one.yml", "- id: mine\n  component: other.wasm\n");
    let second = world.write("sub/two.yml", "- id: mine\n  component: ./last.wasm\n");
    let profile = world.compose(&[first.clone(), second.clone()]).unwrap();

    assert_eq!(ids(&profile), ["llm-retry", "mine"]);
    let (official, mine) = (&profile.entries[0], &profile.entries[1]);
    assert!(!official.disabled);
    assert_eq!(origin(&world, official.provenance.get("disabled")), "profile patch, retake.patch.yml:4");
    assert_eq!(mine.config, json!({"a": 3}), "a value is replaced as a whole, never merged");
    assert_eq!(mine.limits, Some(json!({"memoryMiB": 8})));
    assert_eq!(mine.component, ComponentRef::File(world.path("sub/last.wasm")), "relative to the file that set it");
    assert_eq!(origin(&world, mine.provenance.get("id")), "bundle ./bundles/b, bundles/b/retake.patch.yml:4");
    assert_eq!(origin(&world, mine.provenance.get("config")), "profile patch, retake.patch.yml:2");
    assert_eq!(origin(&world, mine.provenance.get("component")), "--patch, sub/two.yml:2");
    assert_eq!(
        profile.inputs,
        [
            world.path("profile.yml"),
            world.path("bundles/b/retake.patch.yml"),
            world.path("retake.patch.yml"),
            first,
            second,
            world.path("sub/last.wasm")
        ]
    );
}

#[test]
fn inserts_go_to_the_end_in_their_order() {
    let world = World::new(PROVIDER);
    world.write(
        "retake.patch.yml",
        "- insert:\n    - { id: b, component: b.wasm }\n    - { id: a, component: a.wasm }\n- insert: [{ id: c, component: /c.wasm }]\n",
    );
    let profile = world.composed();
    assert_eq!(ids(&profile), ["llm-retry", "b", "a", "c"]);
    assert_eq!(profile.entries[1].component, ComponentRef::File(world.path("b.wasm")));
    assert_eq!(profile.entries[3].component, ComponentRef::File("/c.wasm".into()));
}

#[test]
fn null_puts_a_rows_config_and_limits_back_to_their_defaults() {
    let world = World::new(PROVIDER);
    world.write(
        "retake.patch.yml",
        "- insert: [{ id: a, component: a.wasm, config: { x: 1 }, limits: { y: 2 } }]\n- id: a\n  config:\n  limits: null\n",
    );
    let profile = world.composed();
    assert_eq!((profile.entries[1].config.clone(), profile.entries[1].limits.clone()), (json!({}), None));
}

#[test]
fn an_absent_patch_is_no_layer_and_still_worth_watching() {
    let world = World::new(PROVIDER);
    assert_eq!(world.composed().inputs, [world.path("profile.yml"), world.path("retake.patch.yml")]);
}

#[test]
fn an_empty_list_is_a_patch_without_changes() {
    let world = World::new(PROVIDER);
    world.write("retake.patch.yml", "[]\n");
    assert_eq!(ids(&world.composed()), ["llm-retry"]);
}

#[test]
fn a_patch_that_addresses_nothing_is_skipped_with_a_warning() {
    let world = World::new(PROVIDER);
    world.write(
        "retake.patch.yml",
        "- id: llm-rety\n  disabled: true\n- disabled: true\n- id: group\n  insert: [{ id: x, component: x.wasm }]\n- provider: acne\n  limits: { idleMs: 5 }\n- provider: other\n",
    );
    let profile = world.composed();
    assert_eq!(ids(&profile), ["llm-retry"]);
    assert!(!profile.entries[0].disabled);
    assert_eq!(
        world.warnings(),
        [
            "retake.patch.yml:3:3: skipped: the item has no id, no provider and no insert, so it addresses nothing",
            "retake.patch.yml:4:3: skipped: an insert with the id \"group\" would insert into a group, and there are no groups here; remove the id to append to the chain",
            "retake.patch.yml:1:3: skipped: no lower layer has a row with the id \"llm-rety\" (did you mean \"llm-retry\"?)",
            "retake.patch.yml:6:3: skipped: the profile has no provider \"acne\" (did you mean \"acme\"?)",
            "retake.patch.yml:8:3: skipped: the profile has no provider \"other\"",
        ]
    );
}

#[test]
fn a_name_in_a_patch_is_an_assertion() {
    let world = World::new(PROVIDER);
    world.write(
        "retake.patch.yml",
        "- insert: [{ id: a, name: alpha, component: a.wasm }]\n- { id: a, name: beta, disabled: true }\n- { id: llm-retry, name: beta, disabled: true }\n- { id: a, name: alpha, config: { ok: 1 } }\n",
    );
    let profile = world.composed();
    assert_eq!(profile.entries.iter().map(|entry| entry.disabled).collect::<Vec<_>>(), [false, false]);
    assert_eq!((profile.entries[1].name.as_deref(), &profile.entries[1].config), (Some("alpha"), &json!({"ok": 1})));
    assert_eq!(
        world.warnings(),
        [
            "retake.patch.yml:2:3: skipped: the patch is for a row named \"beta\", but the row \"a\" is named \"alpha\"",
            "retake.patch.yml:3:3: skipped: the patch is for a row named \"beta\", but the row \"llm-retry\" has no name",
        ]
    );
}

#[test]
fn other_keys_beside_an_insert_are_ignored_with_a_warning() {
    let world = World::new(PROVIDER);
    world.write("retake.patch.yml", "- insert: [{ id: a, component: a.wasm }]\n  disabled: true\n");
    assert_eq!(ids(&world.composed()), ["llm-retry", "a"]);
    assert_eq!(
        world.warnings(),
        [
            "retake.patch.yml:1:3: ignored beside insert: disabled; such keys belong into the inserted rows, or into an item of their own with an id"
        ]
    );
}

#[test]
fn a_retry_policy_is_laid_over_lower_layers_key_by_key() {
    let world = World::new(&format!(
        "{PROVIDER}    retryPolicy:\n      mode: normal\n      maxRetries: 7\n      backoff: {{ initialDelayMs: 100, jitterRatio: 0 }}\n"
    ));
    world.write(
        "retake.patch.yml",
        "- provider: acme\n  retryPolicy:\n    retryableCodes: [SERVER]\n    backoff: { maxDelayMs: 900 }\n",
    );
    let overlay = world.write("over.yml", "- provider: acme\n  retryPolicy: { maxRetries: 0 }\n");
    let profile = world.compose(&[overlay]).unwrap();
    let provider = &profile.providers[0];
    assert_eq!(
        provider.policy,
        RetryPolicy::Normal {
            max_retries: 0,
            retryable_codes: ["SERVER".to_owned()].into(),
            backoff: Backoff { initial_delay_ms: 100.0, max_delay_ms: 900.0, jitter_ratio: 0.0 },
        }
    );
    let origins: Vec<_> =
        provider.policy_origins.iter().map(|set| (set.key, origin(&world, set.origin.as_ref()))).collect();
    assert_eq!(
        origins,
        [
            ("mode", "profile, profile.yml:7".to_owned()),
            ("maxRetries", "--patch, over.yml:2".to_owned()),
            ("retryableCodes", "profile patch, retake.patch.yml:3".to_owned()),
            ("backoff.initialDelayMs", "profile, profile.yml:9".to_owned()),
            ("backoff.maxDelayMs", "profile patch, retake.patch.yml:4".to_owned()),
            ("backoff.jitterRatio", "profile, profile.yml:9".to_owned()),
        ]
    );
}

#[test]
fn null_puts_a_key_of_a_policy_back_to_its_default() {
    let world = World::new(&format!(
        "{PROVIDER}    retryPolicy: {{ mode: normal, maxRetries: 9, backoff: {{ initialDelayMs: 1, maxDelayMs: 2 }} }}\n"
    ));
    world.write("retake.patch.yml", "- provider: acme\n  retryPolicy: { maxRetries: null, backoff: null }\n");
    let provider = &world.composed().providers[0];
    assert_eq!(provider.policy, RetryPolicy::default());
    let set: Vec<_> = provider.policy_origins.iter().filter(|set| set.origin.is_some()).map(|set| set.key).collect();
    assert_eq!(set, ["mode"]);
}

#[test]
fn a_layer_may_flip_the_mode_and_leave_stale_keys_behind() {
    let world = World::new(&format!("{PROVIDER}    retryPolicy: {{ mode: normal, maxRetries: 9 }}\n"));
    world.write("retake.patch.yml", "- provider: acme\n  retryPolicy: { mode: always }\n");
    let provider = &world.composed().providers[0];
    assert_eq!(provider.policy, RetryPolicy::Always { backoff: Backoff::default() });
    assert!(provider.policy_origins.iter().all(|set| set.key != "maxRetries"));
}

#[test]
fn other_keys_of_a_provider_are_replaced_as_wholes() {
    let world =
        World::new(&format!("{PROVIDER}    limits: {{ connectMs: 10, idleMs: 20 }}\n    apiKeyEnv: ACME_KEY\n"));
    world.write("retake.patch.yml", "- provider: acme\n  limits: { firstByteMs: 30 }\n  chaos: \"503, ok\"\n");
    let profile = world.composed();
    let provider = &profile.providers[0];
    assert_eq!(provider.limits, ProviderLimits { first_byte_ms: Some(30), ..ProviderLimits::default() });
    assert_eq!(provider.endpoint, Endpoint::Chaos("503, ok".into()), "chaos takes the place of baseUrl");
    assert!(!provider.provenance.contains_key("baseUrl"));
    assert_eq!(world.warnings(), ["profile.yml:7:5: apiKeyEnv is unused: a chaos provider needs no key"]);
}

#[test]
fn the_settings_of_models_are_laid_over_lower_layers_model_by_model_and_key_by_key() {
    let world = World::new(&format!(
        "{PROVIDER}    maxTokens: 100\n    models:\n      m1: {{ maxTokens: 200, limits: {{ contentMs: 5, idleMs: 6 }} }}\n      m2: {{ maxTokens: 300 }}\n"
    ));
    world.write(
        "retake.patch.yml",
        "- provider: acme\n  maxTokens: 101\n  models:\n    m1: { limits: { contentMs: 7 } }\n    m3: { maxTokens: 400 }\n",
    );
    let overlay = world.write("over.yml", "- provider: acme\n  models: { m2: { maxTokens: 301 } }\n");
    let profile = world.compose(&[overlay]).unwrap();
    let provider = &profile.providers[0];
    let tokens = |name: &str| provider.models[name].max_tokens.map(|tokens| tokens.get());
    assert_eq!(provider.max_tokens.map(|tokens| tokens.get()), Some(101));
    assert_eq!([tokens("m1"), tokens("m2"), tokens("m3")], [Some(200), Some(301), Some(400)]);
    let limits = ProviderLimits { content_ms: Some(7), ..ProviderLimits::default() };
    assert_eq!(provider.models["m1"].limits, Some(limits), "limits are one value, as they are for a provider");
    let set = |name: &str, key: &str| origin(&world, provider.model_provenance[name].get(key));
    assert_eq!(set("m1", "maxTokens"), "profile, profile.yml:8");
    assert_eq!(set("m1", "limits"), "profile patch, retake.patch.yml:4");
    assert_eq!(set("m2", "maxTokens"), "--patch, over.yml:2");
    assert_eq!(set("m2", "limits"), "default");
    assert_eq!(set("m3", "maxTokens"), "profile patch, retake.patch.yml:5");
    assert_eq!(origin(&world, provider.provenance.get("maxTokens")), "profile patch, retake.patch.yml:2");
}

#[test]
fn the_limits_of_a_model_are_laid_over_those_of_its_provider() {
    let base = ProviderLimits { connect_ms: Some(1), content_ms: Some(2), total_ms: Some(3), ..Default::default() };
    let own = ProviderLimits { content_ms: Some(20), idle_ms: Some(30), total_ms: Some(0), ..Default::default() };
    let expected = ProviderLimits {
        connect_ms: Some(1),
        content_ms: Some(20),
        idle_ms: Some(30),
        total_ms: Some(0),
        ..Default::default()
    };
    assert_eq!(own.over(base), expected);
    assert_eq!(ProviderLimits::default().over(base), base);
}

#[test]
fn a_code_that_no_adapter_emits_is_a_warning_at_its_line() {
    let world = World::new(&format!(
        "{PROVIDER}    retryPolicy:\n      mode: normal\n      retryableCodes:\n        - SERVER\n        - RATE_LIMITED\n"
    ));
    assert_eq!(
        world.warnings(),
        [
            "profile.yml:10:11: providers[0].retryPolicy.retryableCodes[1]: no adapter emits the code \"RATE_LIMITED\", so it never matches (did you mean \"RATE_LIMIT\"?); the codes are EMPTY_RESPONSE, RATE_LIMIT, SERVER, TIMEOUT, TRANSPORT, AUTH, QUOTA, INVALID_REQUEST, PROTOCOL, CONTEXT_OVERFLOW"
        ]
    );
}

#[test]
fn settings_are_read_and_zero_is_a_value() {
    let profile = World::new(&format!("{PROVIDER}journal: sqlite\ndrainTimeoutMs: 0\n")).composed();
    assert_eq!((profile.journal, profile.drain_timeout_ms), (JournalKind::Sqlite, 0));
    assert_eq!(profile.settings["drainTimeoutMs"].line, 7);
}

#[test]
fn a_problem_below_an_entrys_config_has_a_place() {
    let world = World::new(PROVIDER);
    world.write(
        "retake.patch.yml",
        "- insert:\n    - id: a\n      component: a.wasm\n      config:\n        codes:\n          - X\n          - Y\n",
    );
    let profile = world.composed();
    let config = &profile.entries[1].provenance["config"];
    assert_eq!(world.short(&profile.place(config, "codes[1]").to_string()), "retake.patch.yml:7:13");
    assert_eq!(world.short(&profile.place(config, "").to_string()), "retake.patch.yml:4:7");
}

#[test]
fn an_api_key_is_read_trimmed_and_never_shown() {
    let world = World::new(&format!("{PROVIDER}    apiKeyEnv: ACME_KEY\n"));
    let profile = world.composed();
    let provider = &profile.providers[0];
    let key = provider.api_key(|name| (name == "ACME_KEY").then(|| "sk-1\n".to_owned())).unwrap().unwrap();
    assert_eq!((key.expose(), format!("{key:?}").as_str()), ("sk-1", "ApiKey(…)"));
    for (value, state) in [(None, "not set"), (Some(" \n"), "empty")] {
        assert_eq!(
            provider.api_key(|_| value.map(str::to_owned)).unwrap_err().to_string(),
            format!(
                "The provider \"acme\" needs the environment variable ACME_KEY, which is {state}; set it to the provider's API key."
            )
        );
    }
    assert_eq!(World::new(PROVIDER).composed().providers[0].api_key(|_| None).unwrap(), None);
}
