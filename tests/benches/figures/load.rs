//! Decisions of other turns while a large component compiles.

use crate::{Figure, block_on, decision::decisions, quantile};
use retake::profile::builtin_component;
use retake_tests::{official, runtime};
use std::{sync::Arc, time::Instant};
use wasm_encoder::{
    CodeSection, ComponentSectionId, Encode, Function, FunctionSection, Instruction, Module, TypeSection, ValType,
};

const BYTES: usize = 12 * 1024 * 1024;

pub fn figures() -> Vec<Figure> {
    block_on(async {
        let chain = vec![official().await];
        let mut quiet = decisions(chain.clone(), 0, 3_000).await;
        let compile = tokio::spawn(async {
            let begun = Instant::now();
            runtime().load(large_component()).await.map(|_| begun.elapsed())
        });
        let mut busy = Vec::new();
        while !compile.is_finished() {
            busy.extend(decisions(chain.clone(), 0, 500).await);
        }
        let took = compile.await.expect("it does not panic").expect("it is a valid component");
        let (quiet, busy) = (quantile(&mut quiet, 0.99), quantile(&mut busy, 0.99));
        vec![
            Figure::new("compile of a 12 MB component", took.as_secs_f64(), "s"),
            Figure::new("decision, 99th percentile, quiet", quiet, "µs"),
            Figure::new("decision, 99th percentile, while 12 MB compile", busy, "µs"),
            Figure::new("the two against each other", busy / quiet, "×").at_most(3.0),
        ]
    })
}

/// The official executor with a core module of 12 MB beside it: as much to compile as a JavaScript engine.
fn large_component() -> Arc<[u8]> {
    let mut types = TypeSection::new();
    types.ty().function([ValType::I64], [ValType::I64]);
    let mut functions = FunctionSection::new();
    let mut code = CodeSection::new();
    let mut size = 0;
    let mut n: i64 = 0;
    while size < BYTES {
        let mut function = Function::new([]);
        function.instruction(&Instruction::LocalGet(0));
        for _ in 0..100 {
            n += 1;
            function
                .instruction(&Instruction::I64Const(n.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64)))
                .instruction(&Instruction::I64Xor)
                .instruction(&Instruction::LocalGet(0))
                .instruction(&Instruction::I64Mul);
        }
        function.instruction(&Instruction::End);
        size += function.byte_len();
        functions.function(0);
        code.function(&function);
    }
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&code);
    let mut bytes = builtin_component("llm-retry").expect("it is embedded").to_vec();
    bytes.push(ComponentSectionId::CoreModule.into());
    module.finish().encode(&mut bytes);
    bytes.into()
}
