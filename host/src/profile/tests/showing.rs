use super::*;
use serde_json::json;

fn world() -> World {
    let world = World::new(&format!(
        "{PROVIDER}    apiKeyEnv: ACME_KEY\n    retryPolicy: {{ mode: normal, maxRetries: 2 }}\nbundles: [base, retry-strategy]\n"
    ));
    world.write(
        "retake.patch.yml",
        "- id: retry-strategy\n  config: { strategy: linear }\n- provider: acme\n  retryPolicy: { backoff: { initialDelayMs: 250 } }\n",
    );
    world
}

#[test]
fn the_text_shows_every_value_with_the_layer_that_set_it() {
    let world = world();
    insta::assert_snapshot!(world.short(&to_text(&world.composed())), @r#"
profile work (profile.yml)
      model           m1 of acme            profile, profile.yml:1
      bundles         base, retry-strategy  profile, profile.yml:8
      journal         jsonl                 default
      drainTimeoutMs  5000                  default

executors, the first is asked first
  llm-retry (disabled)
      component  builtin:llm-retry  bundle base, builtin:base:3
      digest     (sha256)  
      config     {}                 default
      disabled   true               bundle retry-strategy, builtin:retry-strategy:2
  retry-strategy
      component  builtin:retry-strategy  bundle retry-strategy, builtin:retry-strategy:5
      digest     (sha256)  
      config     {"strategy":"linear"}   profile patch, retake.patch.yml:2
      disabled   false                   default

providers
  acme (serves the model)
      adapter    openai-chat              profile, profile.yml:4
      baseUrl    https://acme.example/v1  profile, profile.yml:5
      apiKeyEnv  ACME_KEY                 profile, profile.yml:6
    retry policy
      mode                    normal  profile, profile.yml:7
      maxRetries              2       profile, profile.yml:7
      retryableCodes          EMPTY_RESPONSE, RATE_LIMIT, SERVER, TIMEOUT, TRANSPORT  default
      backoff.initialDelayMs  250     profile patch, retake.patch.yml:4
      backoff.maxDelayMs      10000   default
      backoff.jitterRatio     0.1     default
"#);
}

#[test]
fn the_json_form_holds_the_same() {
    let world = world();
    let shown = to_json(&world.composed());
    let patch = world.path("retake.patch.yml");
    assert_eq!(shown["profile"], "work");
    assert_eq!(shown["entries"][1]["config"], json!({"strategy": "linear"}));
    assert_eq!(
        shown["entries"][1]["origins"]["config"],
        json!({"layer": "profile patch", "file": patch, "line": 2, "path": "[0].config"})
    );
    assert_eq!(
        shown["providers"][0]["retryPolicy"],
        json!({
            "mode": "normal", "maxRetries": 2,
            "retryableCodes": ["EMPTY_RESPONSE", "RATE_LIMIT", "SERVER", "TIMEOUT", "TRANSPORT"],
            "backoff": {"initialDelayMs": 250, "maxDelayMs": 10000, "jitterRatio": 0.1},
        })
    );
    assert_eq!(shown["providers"][0]["retryPolicyOrigins"]["backoff.initialDelayMs"]["file"], json!(patch));
    assert!(shown["providers"][0]["retryPolicyOrigins"].get("backoff.maxDelayMs").is_none(), "a default has no origin");
    assert_eq!(shown["inputs"], json!([world.path("profile.yml"), patch]));
}

#[test]
fn what_models_have_of_their_own_is_shown_with_the_layer_that_set_it() {
    let world = World::new(&format!(
        "{PROVIDER}    limits: {{ firstContentMs: 300000 }}\n    maxTokens: 8192\n    models:\n      deepseek-reasoner: {{ maxTokens: 32000, limits: {{ firstContentMs: 600000, contentMs: 120000 }} }}\n"
    ));
    world.write(
        "retake.patch.yml",
        "- provider: acme\n  models: { deepseek-reasoner: { maxTokens: 64000 }, m1: { maxTokens: 5 } }\n",
    );
    let profile = world.composed();
    let text = world.short(&to_text(&profile));
    let providers = text.split_once("providers\n").unwrap().1.split_once("    retry policy").unwrap().0;
    insta::assert_snapshot!(providers, @r#"
  acme (serves the model)
      adapter    openai-chat                profile, profile.yml:4
      baseUrl    https://acme.example/v1    profile, profile.yml:5
      limits     {"firstContentMs":300000}  profile, profile.yml:6
      maxTokens  8192                       profile, profile.yml:7
    model deepseek-reasoner
      limits     {"firstContentMs":600000,"contentMs":120000}  profile, profile.yml:9
      maxTokens  64000                                         profile patch, retake.patch.yml:2
    model m1
      maxTokens  5  profile patch, retake.patch.yml:2
"#);
    let shown = to_json(&profile);
    let provider = &shown["providers"][0];
    assert_eq!((&provider["maxTokens"], &provider["origins"]["maxTokens"]["line"]), (&json!(8192), &json!(7)));
    let model = &provider["models"]["deepseek-reasoner"];
    assert_eq!(model["maxTokens"], json!(64000));
    assert_eq!(model["limits"], json!({"firstContentMs": 600000, "contentMs": 120000}));
    assert_eq!(
        model["origins"]["maxTokens"],
        json!({
            "layer": "profile patch", "file": world.path("retake.patch.yml"), "line": 2,
            "path": "[0].models.deepseek-reasoner.maxTokens",
        })
    );
    assert_eq!(provider["models"]["m1"]["maxTokens"], json!(5));
}

#[test]
fn what_is_shown_as_a_policy_reads_back_as_the_same_policy() {
    let profile = world().composed();
    let shown = to_json(&profile);
    let policy = crate::llm::RetryPolicy::resolve(Some(&shown["providers"][0]["retryPolicy"]), "p").unwrap();
    assert_eq!(policy, profile.providers[0].policy);
}
